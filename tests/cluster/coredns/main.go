// Command coredns is the cluster's name server: CoreDNS with the plugins that the test cluster's Corefile names, and
// no others (the stock build links the libraries of four clouds).
package main

import (
	"github.com/coredns/coredns/coremain"

	// Each plugin registers itself under the word that a Corefile knows it by.
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

func main() {
	coremain.Run()
}
