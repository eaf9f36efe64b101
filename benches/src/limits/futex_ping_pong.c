/* A ping-pong of 64 bytes between processes that share a memfd and wake each other by futex: the least that a message
 * to other processes and their answers cost on this machine, where all sleep while they wait.
 *
 *   futex_ping_pong CORE [OTHERS [spin]]
 *
 *   CORE: the one of the other processes; the asking one stays where it was started
 *   OTHERS: how many other processes answer each message, 1 unless said. One wake is for all of them
 *   spin: nobody sleeps, and so nobody is woken
 *
 * Reads numbers of round trips from its input, a line each, and answers with the median of one in microseconds. All
 * processes end with the input.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The most other processes. */
#define OTHERS_MAX 64

/* Set where nobody sleeps. */
static int spins;

/* One direction, on a page of its own. */
struct side {
    _Atomic uint32_t count;
    _Alignas(64) char message[64];
    _Alignas(4096) char end[];
};

static void wait_while(_Atomic uint32_t *word, uint32_t seen) {
    while (atomic_load_explicit(word, memory_order_acquire) == seen)
        if (!spins)
            syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static void send(struct side *side, const char *message) {
    memcpy(side->message, message, sizeof side->message);
    atomic_fetch_add_explicit(&side->count, 1, memory_order_acq_rel);
    if (!spins)
        syscall(SYS_futex, &side->count, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void answer(struct side *there, struct side *back) {
    char message[64];
    for (uint32_t seen = 0;; seen++) {
        wait_while(&there->count, seen);
        memcpy(message, there->message, sizeof message);
        send(back, message);
    }
}

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static int ascending(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

int main(int argc, char **argv) {
    int others = argc > 2 ? atoi(argv[2]) : 1;
    int fd = memfd_create("futex_ping_pong", MFD_CLOEXEC);
    if (argc < 2 || argc > 4 || others < 1 || others > OTHERS_MAX || fd < 0)
        return 1;
    spins = argc == 4;
    /* The first is the asking one's. */
    size_t bytes = (1 + (size_t)others) * sizeof(struct side);
    if (ftruncate(fd, (off_t)bytes) != 0)
        return 1;
    struct side *sides = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (sides == MAP_FAILED)
        return 1;
    pid_t asking = getpid(), other[OTHERS_MAX];
    for (int i = 0; i < others; i++) {
        other[i] = fork();
        if (other[i] < 0)
            return 1;
        if (other[i] == 0) {
            cpu_set_t cores;
            CPU_ZERO(&cores);
            CPU_SET(atoi(argv[1]), &cores);
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != asking || sched_setaffinity(0, sizeof cores, &cores) != 0)
                _exit(1);
            answer(&sides[0], &sides[1 + i]);
        }
    }
    uint32_t seen = 0;
    char message[64] = {7};
    unsigned long count;
    while (scanf("%lu", &count) == 1 && count > 0) {
        double *took = calloc(count, sizeof *took);
        if (took == NULL)
            return 1;
        for (unsigned long trip = 0; trip < count; trip++) {
            double begun = now_us();
            send(&sides[0], message);
            for (int i = 1; i <= others; i++) {
                wait_while(&sides[i].count, seen);
                memcpy(message, sides[i].message, sizeof message);
            }
            seen++;
            took[trip] = now_us() - begun;
        }
        qsort(took, count, sizeof *took, ascending);
        printf("%f\n", took[count / 2]);
        fflush(stdout);
        free(took);
    }
    for (int i = 0; i < others; i++)
        kill(other[i], SIGKILL);
    return 0;
}
