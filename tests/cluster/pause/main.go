// Command pause is the first process of every pod: it holds the pod's namespaces open until it is told to end.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		// With a shared process namespace the pod's orphans become children of this process.
		for {
			if child, _ := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); child <= 0 {
				break
			}
		}
	}
	os.Exit(1)
}
