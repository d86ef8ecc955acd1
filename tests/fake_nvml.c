/* A libnvidia-ml.so.1 (and, with -DCUDA, a libcuda.so.1) whose GPUs are environment variables.
 *
 *   FAKE_GPU_0="name=NVIDIA X|uuid=GPU-...|bus=1|total=..|free=..|cc=86|cores=..|bits=..|mhz=..|display=1|mig=0"
 *   FAKE_GPU_0_MIG_1="uuid=MIG-...|total=..|free=.."     an instance; numbers may have gaps, as real ones do
 *   compute="pid:bytes pid:bytes", graphics=the same       its processes; without the key they are not supported
 *   memory_error=3, handle_error=4                       what a call on this GPU answers instead
 *   does=segv|exit|hang|print                            what a call for this GPU's memory does to the process
 *   FAKE_INIT_ERROR=18, FAKE_INIT_SLEEP=seconds          the whole library
 *   FAKE_CUDA_UUIDS="hex32 hex32"                        libcuda: what CUDA shows, in its order
 * Compiled with -DOLD it lacks nvmlInitWithFlags, like a library too old for nvidia-ml-py.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef CUDA

enum { MAX = 8, OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

typedef struct { int gpu, mig; } device;                 /* mig: -1 for the GPU itself */
static device handles[MAX][MAX + 1];

static const char *variable(const device *d) {
    char name[64];
    if (d->mig < 0) snprintf(name, sizeof name, "FAKE_GPU_%d", d->gpu);
    else snprintf(name, sizeof name, "FAKE_GPU_%d_MIG_%d", d->gpu, d->mig);
    return getenv(name);
}

static int field(const device *d, const char *key, char *out, size_t size) {
    const char *text = variable(d);
    size_t n = strlen(key);
    while (text && *text) {
        const char *end = strchr(text, '|');
        size_t length = end ? (size_t)(end - text) : strlen(text);
        if (length > n && !strncmp(text, key, n) && text[n] == '=') {
            snprintf(out, size, "%.*s", (int)(length - n - 1), text + n + 1);
            return 1;
        }
        text = end ? end + 1 : NULL;
    }
    return 0;
}

static int number(const device *d, const char *key, unsigned long long *out) {
    char text[64];
    if (!field(d, key, text, sizeof text)) return NOT_SUPPORTED;
    *out = strtoull(text, NULL, 10);
    return OK;
}

static int small(const device *d, const char *key, unsigned *out) {
    unsigned long long value;
    int rc = number(d, key, &value);
    if (rc == OK) *out = (unsigned)value;
    return rc;
}

static int fault(const device *d, const char *key) {
    unsigned code = 0;
    return small(d, key, &code) == OK ? (int)code : OK;
}

static int string(const device *d, const char *key, char *out, unsigned size) {
    return field(d, key, out, size) ? OK : NOT_SUPPORTED;
}

static int start(void) {
    const char *code = getenv("FAKE_INIT_ERROR"), *nap = getenv("FAKE_INIT_SLEEP");
    if (nap) sleep((unsigned)atoi(nap));
    return code ? atoi(code) : OK;
}

#ifndef OLD
int nvmlInitWithFlags(unsigned flags) { (void)flags; return start(); }
#endif
int nvmlInit_v2(void) { return start(); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the fake library"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    device d = {0, -1};
    for (*count = 0; *count < MAX; ++*count) {
        d.gpu = (int)*count;
        if (!variable(&d)) break;
    }
    if (getenv("FAKE_COUNT")) *count = (unsigned)strtoul(getenv("FAKE_COUNT"), NULL, 10);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **out) {
    if (index >= MAX) return INVALID;
    *out = &handles[index][0];
    **out = (device){(int)index, -1};
    return fault(*out, "handle_error");
}

int nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *count) { (void)d; *count = MAX - 1; return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned index, device **out) {
    if (index >= MAX) return INVALID;
    *out = &handles[d->gpu][index + 1];
    **out = (device){d->gpu, (int)index};
    return variable(*out) ? OK : NOT_FOUND;
}

int nvmlDeviceGetMigMode(device *d, unsigned *now, unsigned *pending) {
    int rc = small(d, "mig", now);
    *pending = *now;
    return rc;
}

int nvmlDeviceGetMemoryInfo(device *d, unsigned long long memory[3]) {   /* total, free, used */
    int rc = fault(d, "memory_error");
    char does[16] = "";
    field(d, "does", does, sizeof does);
    if (!strcmp(does, "segv")) raise(SIGSEGV);
    if (!strcmp(does, "exit")) exit(0);
    if (!strcmp(does, "hang")) for (;;) pause();
    if (!strcmp(does, "print")) { puts("-ngl 0"); fflush(stdout); }
    if (rc == OK) rc = number(d, "total", &memory[0]);
    if (rc == OK) rc = number(d, "free", &memory[1]);
    memory[2] = 0xdeadbeefdeadbeefULL;                                   /* nobody may believe `used` */
    return rc;
}

int nvmlDeviceGetName(device *d, char *out, unsigned size) { return string(d, "name", out, size); }
int nvmlDeviceGetUUID(device *d, char *out, unsigned size) { return string(d, "uuid", out, size); }

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;

int nvmlDeviceGetPciInfo_v3(device *d, pci *out) {
    memset(out, 0, sizeof *out);
    return small(d, "bus", &out->bus);
}

int nvmlDeviceGetCudaComputeCapability(device *d, int *major, int *minor) {
    unsigned cc;
    int rc = small(d, "cc", &cc);
    if (rc == OK) { *major = (int)cc / 10; *minor = (int)cc % 10; }
    return rc;
}

int nvmlDeviceGetNumGpuCores(device *d, unsigned *out) { return small(d, "cores", out); }
int nvmlDeviceGetPowerManagementLimit(device *d, unsigned *out) { return small(d, "milliwatts", out); }
int nvmlDeviceGetPowerManagementDefaultLimit(device *d, unsigned *out) { return small(d, "milliwatts_default", out); }
int nvmlDeviceGetMemoryBusWidth(device *d, unsigned *out) { return small(d, "bits", out); }
int nvmlDeviceGetDisplayActive(device *d, unsigned *out) { return small(d, "display", out); }

int nvmlDeviceGetMaxClockInfo(device *d, unsigned kind, unsigned *out) {
    return kind == 2 ? small(d, "mhz", out) : INVALID;                   /* NVML_CLOCK_MEM */
}

typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute_instance; } process;

static int processes(const device *d, const char *kind, unsigned *count, process *out) {
    char text[256], *at = text;
    unsigned there = 0, room = out ? *count : 0;
    if (!field(d, kind, text, sizeof text)) return NOT_SUPPORTED;
    for (char *end; *at; at = *end ? end + 1 : end, ++there) {
        process one = {(unsigned)strtoul(at, &end, 10), 0, ~0u, ~0u};
        one.used = strtoull(end + 1, &end, 10);
        if (there < room) out[there] = one;
    }
    *count = there;
    return there > room ? 7 : OK;                                        /* NVML_ERROR_INSUFFICIENT_SIZE */
}

int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *n, process *out) { return processes(d, "compute", n, out); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(device *d, unsigned *n, process *out) { return processes(d, "graphics", n, out); }

#else

static const char *entry(int index) {
    const char *list = getenv("FAKE_CUDA_UUIDS");
    return list && (size_t)index * 33 < strlen(list) ? list + index * 33 : NULL;
}

int cuInit(unsigned flags) {
    const char *code = getenv("FAKE_CUDA_ERROR");
    (void)flags;
    return code ? atoi(code) : 0;
}

int cuDeviceGetCount(int *count) { for (*count = 0; entry(*count); ++*count) {} return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return entry(index) ? 0 : 101; }

int cuDeviceGetUuid_v2(unsigned char uuid[16], int device) {
    for (int i = 0; i < 16; ++i) sscanf(entry(device) + 2 * i, "%2hhx", &uuid[i]);
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = malloc(1); return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return 0; }
int cuCtxSetCurrent(void *context) { return context ? 0 : 201; }
int cuMemHostAlloc(void **memory, size_t size, unsigned flags) { return (*memory = malloc(size)) && !flags ? 0 : 2; }
int cuMemAlloc_v2(void **memory, size_t size) { return (*memory = malloc(size)) ? 0 : 2; }
int cuMemcpyHtoD_v2(void *to, const void *from, size_t size) { memcpy(to, from, size); return 0; }
int cuMemcpyDtoH_v2(void *to, const void *from, size_t size) { memcpy(to, from, size); return 0; }
int cuMemFree_v2(void *memory) { free(memory); return 0; }
int cuMemFreeHost(void *memory) { free(memory); return 0; }

#endif
