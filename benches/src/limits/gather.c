/* Rows of a table gathered into a buffer: the least that reading rows costs where the table is mapped and warm.
 *
 *   gather ROWS ROW_BYTES     the table: a memfd of so many rows of so many bytes, mapped read-only as a reader has it
 *
 * Reads numbers of rows from its input, a line each. Gathers so many rows, picked at random before, and answers
 * with the microseconds that the copies took.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Memory of a memfd, every byte of it written. */
static char *shared(size_t bytes, int prot, char filler) {
    int fd = memfd_create("gather", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, bytes) != 0)
        return NULL;
    char *write = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (write == MAP_FAILED)
        return NULL;
    memset(write, filler, bytes);
    if (prot & PROT_WRITE)
        return write;
    munmap(write, bytes);
    char *read = mmap(NULL, bytes, prot, MAP_SHARED | MAP_POPULATE, fd, 0);
    return read == MAP_FAILED ? NULL : read;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 1;
    size_t rows = strtoull(argv[1], NULL, 10), row_bytes = strtoull(argv[2], NULL, 10);
    char *table = shared(rows * row_bytes, PROT_READ, 'x');
    char *buffer = NULL;
    size_t *picked = NULL;
    size_t room = 0, count;
    uint64_t state = 88172645463325252ull;
    if (table == NULL)
        return 1;
    while (scanf("%zu", &count) == 1 && count > 0) {
        if (count > room) {
            picked = realloc(picked, count * sizeof *picked);
            buffer = shared(count * row_bytes, PROT_READ | PROT_WRITE, 'y');
            room = count;
        }
        if (picked == NULL || buffer == NULL)
            return 1;
        for (size_t i = 0; i < count; i++)
            picked[i] = next_random(&state) % rows;
        double begun = now_us();
        for (size_t i = 0; i < count; i++)
            memcpy(buffer + i * row_bytes, table + picked[i] * row_bytes, row_bytes);
        printf("%f\n", now_us() - begun);
        fflush(stdout);
    }
    return 0;
}
