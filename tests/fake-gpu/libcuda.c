// A stand-in for the driver of CUDA (libcuda.so.1), for tests alone. Its "GPU memory" is memory of the host.
//
// What it proves: that we call the driver in the order and with the values that it wants, that descriptors go where they should,
// that memory lives and dies as it should, and that refusals are understood. What it proves nothing of: speed of anything,
// what a real driver does, coherence, more than one context, namespaces, how a real GPU is split (MIG), MPS. No figure may come from it.
//
// It refuses what the driver refuses: a call before cuInit (3), work without a current context (201), sizes that are not the
// granularity's and unknown handles, addresses and properties (1), devices that it does not see (101), copies from or to what is
// not mapped or not allowed (700).
//
// An allocation is a memfd called fake-gpu:DEVICE:BYTES whose size is sealed. The kernel counts who holds it, as the driver counts
// who holds an allocation.
//
// The environment tells it what to be:
//   FAKE_CUDA_DEVICES=N    devices that are seen; 1 unless said
//   FAKE_CUDA_FIRST=N      the first of them, as CUDA_VISIBLE_DEVICES would say; 0 unless said
//   FAKE_CUDA_SLICE=N      the one device is slice N of a GPU that is split (MIG): it has a UUID of its own, and no other slice takes
//                          its memory
//   FAKE_CUDA_MEMORY=N     bytes of memory of each device that this process may have; 8 GiB unless said
//   FAKE_CUDA_NO_VMM=1     devices without virtual memory management
//   FAKE_CUDA_FAIL=F:C     the function F answers C
//   FAKE_CUDA_BUSY=FILE    the device works for as long as there is such a file
//   FAKE_CUDA_SLOW=N       a copy to the host takes N milliseconds
//   FAKE_CUDA_HANG=PATH    a copy to the host waits for as long as there is a file of that name
// Compiled with -DWITHOUT_EXPORT it is a driver that is too old to have cuMemExportToShareableHandle.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
  OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201, INVALID_HANDLE = 400, ILLEGAL_ADDRESS = 700, NOT_SUPPORTED = 801, UNKNOWN = 999
};
#define GRANULE ((size_t)2 << 20)
#define HANDLES 4096
#define RANGES 4096
#define DEPTH 16

typedef struct { unsigned kind; int id; } Location;
typedef struct { unsigned kind, handles; Location location; void *windows; unsigned char flags[8]; } Properties;
typedef struct { Location location; unsigned flags; } Access;
typedef struct { int used, fd, device, exportable; size_t bytes; unsigned references; } Allocation;
typedef struct { char *start; size_t bytes; int mapped; unsigned access; uint64_t handle; } Range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int started;
static size_t taken;
static Allocation allocations[HANDLES];  // a handle is an index plus 1; 0 is none
static Range ranges[RANGES];
static int contexts[64];  // by ordinal: how often it was retained
static __thread int stack[DEPTH], depth;

static long setting(const char *name, long otherwise) {
  const char *value = getenv(name);
  return value && *value ? atol(value) : otherwise;
}

static int fails(const char *function) {
  const char *wish = getenv("FAKE_CUDA_FAIL");
  size_t length = strlen(function);
  return wish && !strncmp(wish, function, length) && wish[length] == ':' ? atoi(wish + length + 1) : OK;
}

static int count(void) { return (int)setting("FAKE_CUDA_DEVICES", 1); }
static int slice(void) { return (int)setting("FAKE_CUDA_SLICE", -1); }
// Slices have numbers that no whole GPU has.
static int first(void) { return slice() < 0 ? (int)setting("FAKE_CUDA_FIRST", 0) : 128 + slice(); }

#define BEGIN                                       \
  do {                                              \
    int wished = fails(__func__);                   \
    if (wished) return wished;                      \
    if (!started) return NOT_INITIALIZED;           \
  } while (0)
#define IN_CONTEXT                                  \
  do {                                              \
    BEGIN;                                          \
    if (!depth) return INVALID_CONTEXT;             \
  } while (0)
#define ON(device)                                  \
  do {                                              \
    if ((device) < 0 || (device) >= count()) return INVALID_DEVICE; \
  } while (0)
#define RETURN(code)                                \
  do {                                              \
    int answer = (code);                            \
    pthread_mutex_unlock(&lock);                    \
    return answer;                                  \
  } while (0)

int cuInit(unsigned flags) {
  int wished = fails(__func__);
  if (wished) return wished;
  if (flags) return INVALID_VALUE;
  if (count() < 1) return NO_DEVICE;
  started = 1;
  return OK;
}

int cuDriverGetVersion(int *version) { *version = 12080; return OK; }

int cuGetErrorName(int code, const char **name) {
  switch (code) {
    case OK: *name = "CUDA_SUCCESS"; return OK;
    case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; return OK;
    case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return OK;
    case NOT_INITIALIZED: *name = "CUDA_ERROR_NOT_INITIALIZED"; return OK;
    case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; return OK;
    case INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; return OK;
    case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; return OK;
    case INVALID_HANDLE: *name = "CUDA_ERROR_INVALID_HANDLE"; return OK;
    case ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return OK;
    case NOT_SUPPORTED: *name = "CUDA_ERROR_NOT_SUPPORTED"; return OK;
    case UNKNOWN: *name = "CUDA_ERROR_UNKNOWN"; return OK;
    default: *name = NULL; return INVALID_VALUE;
  }
}

int cuDeviceGetCount(int *devices) { BEGIN; *devices = count(); return OK; }
int cuDeviceGet(int *device, int ordinal) { BEGIN; ON(ordinal); *device = ordinal; return OK; }

int cuDeviceGetName(char *name, int length, int device) {
  BEGIN; ON(device);
  snprintf(name, (size_t)length, "fake GPU (memory of the host)");
  return OK;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
  BEGIN; ON(device);
  memcpy(uuid, slice() < 0 ? "fake-gpu-memory" : "fake-gpu-slice-", 15);
  uuid[15] = (unsigned char)(first() + device);
  return OK;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  BEGIN; ON(device);
  *bytes = (size_t)setting("FAKE_CUDA_MEMORY", 8L << 30);
  return OK;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  BEGIN; ON(device);
  // 102: virtual memory management; 103: handles that are descriptors.
  *value = (attribute == 102 || attribute == 103) && !setting("FAKE_CUDA_NO_VMM", 0);
  return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
  BEGIN; ON(device);
  pthread_mutex_lock(&lock);
  contexts[device]++;
  *context = (void *)(intptr_t)(device + 1);
  RETURN(OK);
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  BEGIN; ON(device);
  pthread_mutex_lock(&lock);
  if (!contexts[device]) RETURN(INVALID_CONTEXT);
  contexts[device]--;
  RETURN(OK);
}

int cuCtxPushCurrent_v2(void *context) {
  BEGIN;
  int device = (int)(intptr_t)context - 1;
  if (device < 0 || device >= count() || !contexts[device] || depth == DEPTH) return INVALID_CONTEXT;
  stack[depth++] = device;
  return OK;
}

int cuCtxPopCurrent_v2(void **context) {
  BEGIN;
  if (!depth) return INVALID_CONTEXT;
  *context = (void *)(intptr_t)(stack[--depth] + 1);
  return OK;
}

int cuCtxSynchronize(void) {
  IN_CONTEXT;
  const char *busy = getenv("FAKE_CUDA_BUSY");
  while (busy && !access(busy, F_OK)) usleep(1000);
  return OK;
}

static int fits(const Properties *properties) {
  if (!properties || properties->kind != 1 || properties->location.kind != 1 || properties->handles > 1) return INVALID_VALUE;
  ON(properties->location.id);
  return OK;
}

int cuMemGetAllocationGranularity(size_t *bytes, const Properties *properties, unsigned option) {
  BEGIN;
  if (option > 1) return INVALID_VALUE;
  *bytes = GRANULE;
  return fits(properties);
}

// --- allocations, under the lock

static Allocation *of(uint64_t handle) {
  return handle && handle <= HANDLES && allocations[handle - 1].used ? &allocations[handle - 1] : NULL;
}

static int enter(uint64_t *handle, int fd, int device, size_t bytes, int exportable) {
  for (int i = 0; i < HANDLES; i++) {
    if (allocations[i].used) continue;
    allocations[i] = (Allocation){1, fd, device, exportable, bytes, 1};
    *handle = (uint64_t)i + 1;
    return OK;
  }
  close(fd);
  return OUT_OF_MEMORY;
}

static void leave(Allocation *allocation) {
  if (--allocation->references) return;
  close(allocation->fd);
  if (allocation->exportable) taken -= allocation->bytes;
  allocation->used = 0;
}

int cuMemCreate(uint64_t *handle, size_t bytes, const Properties *properties, unsigned long long flags) {
  BEGIN;
  int fit = fits(properties);
  if (fit) return fit;
  if (!bytes || bytes % GRANULE || flags) return INVALID_VALUE;
  char name[64];
  int device = properties->location.id;
  snprintf(name, sizeof name, "fake-gpu:%d:%zu", first() + device, bytes);
  pthread_mutex_lock(&lock);
  size_t most = (size_t)setting("FAKE_CUDA_MEMORY", 8L << 30);
  if (bytes > most || taken > most - bytes) RETURN(OUT_OF_MEMORY);
  int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) RETURN(OUT_OF_MEMORY);
  if (ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
    close(fd);
    RETURN(OUT_OF_MEMORY);
  }
  int entered = enter(handle, fd, device, bytes, 1);
  if (!entered) taken += bytes;
  RETURN(entered);
}

int cuMemRelease(uint64_t handle) {
  BEGIN;
  pthread_mutex_lock(&lock);
  Allocation *allocation = of(handle);
  if (!allocation) RETURN(INVALID_VALUE);
  leave(allocation);
  RETURN(OK);
}

#ifndef WITHOUT_EXPORT
int cuMemExportToShareableHandle(void *out, uint64_t handle, unsigned type, unsigned long long flags) {
  BEGIN;
  pthread_mutex_lock(&lock);
  Allocation *allocation = of(handle);
  if (!allocation || type != 1 || flags) RETURN(INVALID_VALUE);
  int fd = fcntl(allocation->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) RETURN(UNKNOWN);
  *(int *)out = fd;
  RETURN(OK);
}
#endif

int cuMemImportFromShareableHandle(uint64_t *handle, void *os, unsigned type) {
  BEGIN;
  if (type != 1) return INVALID_VALUE;
  int fd = (int)(intptr_t)os, device;
  char path[64], name[128];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(path, name, sizeof name - 1);
  if (length < 0) return INVALID_VALUE;
  name[length] = 0;
  size_t bytes;
  struct stat seen;
  if (sscanf(name, "/memfd:fake-gpu:%d:%zu", &device, &bytes) != 2) return INVALID_VALUE;
  if (fstat(fd, &seen) || (size_t)seen.st_size != bytes || !(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK)) return INVALID_VALUE;
  device -= first();
  if (device < 0 || device >= count()) return INVALID_DEVICE;
  int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return UNKNOWN;
  pthread_mutex_lock(&lock);
  RETURN(enter(handle, own, device, bytes, 0));
}

int cuMemGetAllocationPropertiesFromHandle(Properties *properties, uint64_t handle) {
  BEGIN;
  pthread_mutex_lock(&lock);
  Allocation *allocation = of(handle);
  if (!allocation) RETURN(INVALID_VALUE);
  memset(properties, 0, sizeof *properties);
  properties->kind = properties->handles = properties->location.kind = 1;
  properties->location.id = allocation->device;
  RETURN(OK);
}

// --- addresses, under the lock

static Range *at(uint64_t start, size_t bytes) {
  for (int i = 0; i < RANGES; i++)
    if (ranges[i].start == (char *)start && ranges[i].bytes == bytes && start) return &ranges[i];
  return NULL;
}

static Range *around(uint64_t pointer, size_t bytes) {
  for (int i = 0; i < RANGES; i++) {
    uint64_t start = (uint64_t)ranges[i].start;
    if (start && ranges[i].mapped && pointer >= start && pointer - start <= ranges[i].bytes &&
        bytes <= ranges[i].bytes - (pointer - start))
      return &ranges[i];
  }
  return NULL;
}

int cuMemAddressReserve(uint64_t *start, size_t bytes, size_t alignment, uint64_t wish, unsigned long long flags) {
  IN_CONTEXT;
  (void)alignment; (void)wish;
  if (!bytes || bytes % GRANULE || flags) return INVALID_VALUE;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < RANGES; i++) {
    if (ranges[i].start) continue;
    void *map = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) RETURN(OUT_OF_MEMORY);
    ranges[i] = (Range){map, bytes, 0, 0, 0};
    *start = (uint64_t)map;
    RETURN(OK);
  }
  RETURN(OUT_OF_MEMORY);
}

int cuMemAddressFree(uint64_t start, size_t bytes) {
  BEGIN;
  pthread_mutex_lock(&lock);
  Range *range = at(start, bytes);
  if (!range || range->mapped) RETURN(INVALID_VALUE);
  munmap(range->start, range->bytes);
  range->start = NULL;
  RETURN(OK);
}

int cuMemMap(uint64_t start, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags) {
  IN_CONTEXT;
  pthread_mutex_lock(&lock);
  Range *range = at(start, bytes);
  Allocation *allocation = of(handle);
  if (!range || range->mapped || !allocation || offset || flags || bytes > allocation->bytes) RETURN(INVALID_VALUE);
  if (mmap(range->start, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, allocation->fd, 0) == MAP_FAILED) RETURN(UNKNOWN);
  allocation->references++;
  range->mapped = 1, range->access = 0, range->handle = handle;
  RETURN(OK);
}

int cuMemUnmap(uint64_t start, size_t bytes) {
  BEGIN;
  pthread_mutex_lock(&lock);
  Range *range = at(start, bytes);
  if (!range || !range->mapped) RETURN(INVALID_VALUE);
  mmap(range->start, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  range->mapped = 0;
  leave(&allocations[range->handle - 1]);
  RETURN(OK);
}

int cuMemSetAccess(uint64_t start, size_t bytes, const Access *access, size_t many) {
  IN_CONTEXT;
  if (many != 1 || access->location.kind != 1 || (access->flags != 1 && access->flags != 3)) return INVALID_VALUE;
  ON(access->location.id);
  pthread_mutex_lock(&lock);
  Range *range = at(start, bytes);
  if (!range || !range->mapped) RETURN(INVALID_VALUE);
  range->access = access->flags;
  if (mprotect(range->start, bytes, access->flags == 3 ? PROT_READ | PROT_WRITE : PROT_READ)) RETURN(UNKNOWN);
  RETURN(OK);
}

int cuPointerGetAttribute(void *out, int attribute, uint64_t pointer) {
  IN_CONTEXT;
  pthread_mutex_lock(&lock);
  Range *range = around(pointer, 1);
  if (!range) RETURN(INVALID_VALUE);
  // 2: the kind of memory, which is a device's; 9: the ordinal of the device.
  if (attribute == 2) *(unsigned *)out = 2;
  else if (attribute == 9) *(unsigned *)out = (unsigned)allocations[range->handle - 1].device;
  else RETURN(INVALID_VALUE);
  RETURN(OK);
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t pointer) {
  IN_CONTEXT;
  pthread_mutex_lock(&lock);
  Range *range = around(pointer, 1);
  if (!range) RETURN(INVALID_VALUE);
  *base = (uint64_t)range->start, *bytes = range->bytes;
  RETURN(OK);
}

// --- streams, of which the default one is 0, and copies

int cuStreamCreate(void **stream, unsigned flags) {
  IN_CONTEXT;
  if (flags > 1) return INVALID_VALUE;
  *stream = malloc(1);
  return *stream ? OK : OUT_OF_MEMORY;
}

int cuStreamDestroy_v2(void *stream) { IN_CONTEXT; free(stream); return OK; }
int cuStreamSynchronize(void *stream) { IN_CONTEXT; (void)stream; return OK; }

static int allowed(uint64_t pointer, size_t bytes, unsigned access) {
  Range *range = around(pointer, bytes);
  return range && (range->access & access) == access;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
  IN_CONTEXT; (void)stream;
  pthread_mutex_lock(&lock);
  if (!allowed(to, bytes, 3)) RETURN(ILLEGAL_ADDRESS);
  memcpy((void *)to, from, bytes);
  RETURN(OK);
}

// Memory of the host that is made known: the same pages only once, and given back as a whole.
#define KNOWN 4096
static struct { char *start; size_t bytes; } known[KNOWN];

int cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags) {
  IN_CONTEXT;
  if (!start || !bytes || flags > 7) return INVALID_VALUE;
  pthread_mutex_lock(&lock);
  int room = -1;
  for (int i = 0; i < KNOWN; i++) {
    if (!known[i].start) room = room < 0 ? i : room;
    else if ((char *)start < known[i].start + known[i].bytes && known[i].start < (char *)start + bytes) RETURN(712);
  }
  if (room < 0) RETURN(OUT_OF_MEMORY);
  known[room].start = start, known[room].bytes = bytes;
  RETURN(OK);
}

int cuMemHostUnregister(void *start) {
  IN_CONTEXT;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < KNOWN; i++) {
    if (!start || known[i].start != (char *)start) continue;
    known[i].start = NULL;
    RETURN(OK);
  }
  RETURN(713);
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
  IN_CONTEXT; (void)stream;
  usleep((unsigned)setting("FAKE_CUDA_SLOW", 0) * 1000);
  const char *hang = getenv("FAKE_CUDA_HANG");
  while (hang && !access(hang, F_OK)) usleep(10000);
  pthread_mutex_lock(&lock);
  if (!allowed(from, bytes, 1)) RETURN(ILLEGAL_ADDRESS);
  memcpy(to, (void *)from, bytes);
  RETURN(OK);
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
  IN_CONTEXT; (void)stream;
  pthread_mutex_lock(&lock);
  if (!allowed(to, bytes, 3) || !allowed(from, bytes, 1)) RETURN(ILLEGAL_ADDRESS);
  memmove((void *)to, (void *)from, bytes);
  RETURN(OK);
}
