/* The driver of virtual GPUs: a forged libnvidia-ml.so.1 that reads a text file at every call, so a GPU can be changed
 * while it is read. The file is FORGED_NVML, or that of the virtual node beside this library, SLURMD_NODENAME.gpus.
 *
 * A line is `NUMBER KEY VALUE`: of GPU NUMBER, from 0. Keys: uuid, name, utilisation, used, total (MiB), power, limit
 * (mW), temperature, throttles, ecc, minor, parent (of a MIG device, the number of its GPU), process (PID MIB, one a
 * line), rate (PID PERCENT, one a line: what a process used of a shared GPU), and xid (a critical error, told once).
 * What has no line is NVML_ERROR_NOT_SUPPORTED. `0 lost 1`: the GPU is lost, and answers nothing.
 * -DWITHOUT_ECC leaves a function out, as an older driver does.
 * Signatures: https://docs.nvidia.com/deploy/nvml-api/
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15 };
typedef struct { unsigned int pid; unsigned long long memory; unsigned int gpu_instance, compute_instance; } process_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2_t;

/* Returns the path of the file, or NULL. */
static const char *file_of_gpus(void) {
    static char path[4096];
    const char *named = getenv("FORGED_NVML"), *node = getenv("SLURMD_NODENAME");
    Dl_info own;
    if (named) return named;
    if (!node || !dladdr((void *)file_of_gpus, &own) || !strrchr(own.dli_fname, '/')) return NULL;
    snprintf(path, sizeof path, "%.*s/%s.gpus", (int)(strrchr(own.dli_fname, '/') - own.dli_fname), own.dli_fname, node);
    return path;
}

static FILE *open_gpus(void) {
    const char *path = file_of_gpus();
    return path ? fopen(path, "r") : NULL;
}

/* Copies the value of the nth line of a GPU with that key; returns whether there is one. */
static int find(long gpu, const char *key, int nth, char *value, size_t size) {
    FILE *file = open_gpus();
    char line[256], found[32], rest[192];
    long number;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%ld %31s %191[^\n]", &number, found, rest) == 3 && number == gpu && !strcmp(found, key) && !nth--) {
            fclose(file);
            snprintf(value, size, "%s", rest);
            return 1;
        }
    if (file) fclose(file);
    return 0;
}

static int text(void *device, const char *key, char *value, unsigned int size) {
    char lost[8];
    if (find((long)device - 1, "lost", 0, lost, sizeof lost)) return LOST;
    return find((long)device - 1, key, 0, value, size) ? OK : NOT_SUPPORTED;
}

static int number(void *device, const char *key, unsigned long long *value) {
    char found[192];
    int error = text(device, key, found, sizeof found);
    if (!error) *value = strtoull(found, NULL, 10);
    return error;
}

static int number32(void *device, const char *key, unsigned int *value) {
    unsigned long long wide;
    int error = number(device, key, &wide);
    if (!error) *value = (unsigned int)wide;
    return error;
}

int nvmlInitWithFlags(unsigned int flags) {
    FILE *file = open_gpus();
    if (!file) return 9; /* driver not loaded */
    fclose(file);
    return OK;
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int error) { return error == LOST ? "GPU is lost" : error == 9 ? "Driver Not Loaded" : "Forged"; }

int nvmlDeviceGetCount_v2(unsigned int *count) {
    char uuid[96], parent[8];
    unsigned int all = 0;
    for (*count = 0; find(all, "uuid", 0, uuid, sizeof uuid); all++)
        *count += !find(all, "parent", 0, parent, sizeof parent);
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    char uuid[96];
    *device = (void *)(long)(index + 1);
    return find(index, "uuid", 0, uuid, sizeof uuid) ? OK : INVALID;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    char found[96];
    for (long at = 0; find(at, "uuid", 0, found, sizeof found); at++)
        if (!strcmp(found, uuid)) { *device = (void *)(at + 1); return OK; }
    return NOT_FOUND;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *device, void **parent) {
    unsigned long long found;
    if (number(device, "parent", &found)) return INVALID;
    *parent = (void *)(long)(found + 1);
    return OK;
}
int nvmlDeviceGetMinorNumber(void *device, unsigned int *minor) { return number32(device, "minor", minor); }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int size) { return text(device, "uuid", uuid, size); }
int nvmlDeviceGetName(void *device, char *name, unsigned int size) { return text(device, "name", name, size); }
int nvmlDeviceGetUtilizationRates(void *device, unsigned int *rates) {
    rates[1] = 0;
    return number32(device, "utilisation", rates);
}
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    int error = number(device, "used", &memory->used);
    if (!error) error = number(device, "total", &memory->total);
    memory->used = (memory->used + 615) << 20, memory->total <<= 20; /* with what the driver keeps */
    return error;
}
#ifndef WITHOUT_MEMORY_V2
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2_t *memory) {
    int error = number(device, "used", &memory->used);
    if (!error) error = number(device, "total", &memory->total);
    memory->used <<= 20, memory->total <<= 20;
    return error;
}
#endif
int nvmlDeviceGetPowerUsage(void *device, unsigned int *power) { return number32(device, "power", power); }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned int *limit) { return number32(device, "limit", limit); }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *celsius) { return number32(device, "temperature", celsius); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits) { return number(device, "throttles", bits); }
#ifndef WITHOUT_ECC
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *count) {
    return kind == 1 && counter == 0 ? number(device, "ecc", count) : INVALID;
}
#endif
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, process_t *processes) {
    char line[96], lost[8];
    unsigned int room = *count;
    if (find((long)device - 1, "lost", 0, lost, sizeof lost)) return LOST;
    for (*count = 0; find((long)device - 1, "process", *count, line, sizeof line); ++*count)
        if (*count < room && processes) {
            process_t *each = processes + *count;
            each->memory = ~0ULL; /* not available, where the line has none */
            if (sscanf(line, "%u %llu", &each->pid, &each->memory) == 2) each->memory <<= 20;
        }
    return *count > room ? TOO_SMALL : OK;
}

typedef struct { unsigned int pid; unsigned long long at; unsigned int sm, memory, encoder, decoder; } rate_t;
int nvmlDeviceGetProcessUtilization(void *device, rate_t *rates, unsigned int *count, unsigned long long since) {
    static unsigned long long now = 1;
    char line[96];
    unsigned int room = *count;
    if (find((long)device - 1, "parent", 0, line, sizeof line)) return NOT_SUPPORTED;
    for (*count = 0; find((long)device - 1, "rate", *count, line, sizeof line); ++*count)
        if (*count < room && rates) {
            rate_t *each = rates + *count;
            if (sscanf(line, "%u %u", &each->pid, &each->sm) == 2) each->at = ++now;
        }
    if (!*count || now == since) return NOT_FOUND;
    return *count > room ? TOO_SMALL : OK;
}

/* Events: one set for each device, which knows how many of its errors were told. */
typedef struct { void *device; unsigned long long kind, data; unsigned int gpu_instance, compute_instance; } event_t;
typedef struct { void *device; int told; } events_t;
int nvmlEventSetCreate(void **set) { return (*set = calloc(1, sizeof(events_t))) ? OK : 999; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long kinds, void *set) {
    ((events_t *)set)->device = device;
    return kinds == 8 ? OK : NOT_SUPPORTED;
}
int nvmlEventSetWait_v2(void *set, event_t *event, unsigned int milliseconds) {
    events_t *events = set;
    char value[96];
    if (!find((long)events->device - 1, "xid", events->told, value, sizeof value)) return 10; /* timeout */
    events->told++;
    event->device = events->device, event->kind = 8, event->data = strtoull(value, NULL, 10);
    return OK;
}
