/* A libnvidia-ml.so.1 that sees whatever GPUs the environment variable FAKE_NVML tells it to.
 *
 * FAKE_NVML is ";key=value;key=value;". Of the library: gpus (how many), init (return code), init_does ("hang", "crash", "slow"),
 * driver, nvml (versions), p2p (status of each pair). Of a GPU: "3.key=value", or "*.key=value" for all. A value "!15"
 * makes that question return code 15; "*.everything=!3" is the value of all that isn't named. The processes on a GPU are
 * "holders", or so many "processes" that hold "process_memory" each; "whole_processes=!4" hides those of the whole GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int Return;
typedef unsigned long long u64;
typedef struct { int gpu, slot; } *Handle;

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15 };

static const char *lookup(const char *prefix, const char *key, char *value, size_t size) {
    char wanted[128];
    const char *all = getenv("FAKE_NVML"), *found, *end;
    snprintf(wanted, sizeof wanted, ";%s%s=", prefix, key);
    if (!all || !(found = strstr(all, wanted))) return NULL;
    found += strlen(wanted);
    end = strchr(found, ';');
    snprintf(value, size, "%.*s", end ? (int)(end - found) : (int)strlen(found), found);
    return value;
}

static long library(const char *key, long otherwise) {
    char value[256];
    return lookup("", key, value, sizeof value) ? atol(value) : otherwise;
}

static Return text(Handle h, const char *key, const char *otherwise, char *out, size_t size) {
    char prefix[16], value[4096];
    snprintf(prefix, sizeof prefix, "%d.", h->gpu);
    if (lookup(prefix, "lost", value, sizeof value) && atoi(value)) return LOST;
    if (!lookup(prefix, key, value, sizeof value) && !lookup("*.", key, value, sizeof value) &&
        !lookup(prefix, "everything", value, sizeof value) && !lookup("*.", "everything", value, sizeof value))
        snprintf(value, sizeof value, "%s", otherwise);
    if (!strcmp(value, "hang")) pause();
    if (!strcmp(value, "crash")) *(volatile int *)8 = 1;
    if (value[0] == '!') return atoi(value + 1);
    snprintf(out, size, "%s", value);
    return OK;
}

static Return number(Handle h, const char *key, u64 otherwise, u64 *out) {
    char value[256], usual[32];
    snprintf(usual, sizeof usual, "%llu", otherwise);
    Return code = text(h, key, usual, value, sizeof value);
    if (code == OK) *out = strtoull(value, NULL, 10);
    return code;
}

#define UINT(function, key, otherwise)                                                                                 \
    Return function(Handle h, unsigned *out) {                                                                         \
        u64 value;                                                                                                     \
        Return code = number(h, key, otherwise, &value);                                                               \
        if (code == OK) *out = (unsigned)value;                                                                        \
        return code;                                                                                                   \
    }

Return nvmlInitWithFlags(unsigned flags) {
    char does[32];
    (void)flags;
    if (lookup("", "init_does", does, sizeof does)) {
        if (!strcmp(does, "hang")) for (;;) pause();
        if (!strcmp(does, "slow")) sleep(3);
        if (!strcmp(does, "crash")) *(volatile int *)8 = 1;
    }
    return library("init", 0);
}
Return nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
Return nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(Return code) {
    switch (code) {
    case 0: return "Success";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 6: return "Not Found";
    case 9: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 12: return "NVML Shared Library Not Found";
    case 13: return "Function Not Found";
    case 15: return "GPU is lost";
    case 17: return "The operating system has blocked the request";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

static Return version(const char *key, const char *otherwise, char *out, unsigned size) {
    char value[96];
    snprintf(out, size, "%s", lookup("", key, value, sizeof value) ? value : otherwise);
    return OK;
}
Return nvmlSystemGetDriverVersion(char *out, unsigned size) { return version("driver", "580.95.05", out, size); }
Return nvmlSystemGetNVMLVersion(char *out, unsigned size) { return version("nvml", "13.580.95.05", out, size); }
Return nvmlSystemGetCudaDriverVersion(int *out) { *out = library("cuda", 13000); return OK; }
Return nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }
Return nvmlDeviceGetCount_v2(unsigned *out) { *out = library("gpus", 8); return library("count", OK); }

Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *out) {
    u64 ignored;
    if (index >= (unsigned)library("gpus", 8)) return INVALID;
    *out = calloc(1, sizeof **out);
    (*out)->gpu = (int)index;
    (*out)->slot = -1;
    return number(*out, "handle", 0, &ignored);
}

Return nvmlDeviceGetName(Handle h, char *out, unsigned size) {
    Return code = text(h, "name", "NVIDIA H100 80GB HBM3", out, size);
    if (code == OK && h->slot >= 0) strncat(out, " MIG 1g.10gb", size - strlen(out) - 1);
    return code;
}
Return nvmlDeviceGetVbiosVersion(Handle h, char *out, unsigned size) {
    return text(h, "vbios", "96.00.89.00.01", out, size);
}
Return nvmlDeviceGetUUID(Handle h, char *out, unsigned size) {
    char usual[64];
    snprintf(usual, sizeof usual, "GPU-5c7d1e00-3a4f-b1c2-9d0e-%012x", h->gpu);
    Return code = text(h, "uuid", usual, out, size);
    if (code == OK && h->slot >= 0) snprintf(out, size, "MIG-5c7d1e00-3a4f-b1c2-%04x-%012x", h->slot, h->gpu);
    return code;
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} PciInfo;
Return nvmlDeviceGetPciInfo_v3(Handle h, PciInfo *out) {
    static const int buses[] = {0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf};
    char usual[32];
    snprintf(usual, sizeof usual, "00000000:%02X:00.0", buses[h->gpu % 8]);
    memset(out, 0, sizeof *out);
    return text(h, "bus_id", usual, out->bus_id, sizeof out->bus_id);
}

Return nvmlDeviceGetCudaComputeCapability(Handle h, int *major, int *minor) {
    u64 both;
    Return code = number(h, "capability", 90, &both);
    if (code == OK) *major = both / 10, *minor = both % 10;
    return code;
}

Return nvmlDeviceGetMemoryInfo(Handle h, u64 *out) {
    u64 total, used = 0;
    Return code = number(h, "memory", 85520809984ull, &total);
    if (code == OK) code = number(h, "used", 0, &used);
    if (code == OK) out[0] = total, out[1] = total - used, out[2] = used + (512ull << 20);
    return code;
}
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory2;
Return nvmlDeviceGetMemoryInfo_v2(Handle h, Memory2 *out) {
    u64 plain[3];
    Return code = nvmlDeviceGetMemoryInfo(h, plain);
    if (code == OK) out->total = plain[0], out->reserved = 512ull << 20, out->free = plain[1], out->used = plain[2] - out->reserved;
    return code;
}

UINT(nvmlDeviceGetComputeMode, "mode", 0)
UINT(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending", 0)
UINT(nvmlDeviceGetPowerUsage, "power", 71300)
UINT(nvmlDeviceGetPowerManagementLimit, "power_limit", 700000)
UINT(nvmlDeviceGetPowerManagementDefaultLimit, "power_limit_default", 700000)
UINT(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation", 5)
UINT(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max", 5)
UINT(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", 16)
UINT(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max", 16)
UINT(nvmlDeviceGetVirtualizationMode, "virtualization", 0)
UINT(nvmlDeviceGetMaxMigDeviceCount, "mig_slots", 7)

Return nvmlDeviceGetMigMode(Handle h, unsigned *current, unsigned *pending) {
    u64 mig;
    Return code = number(h, "mig", 0, &mig);
    if (code == OK) *current = *pending = mig > 0;
    return code;
}
Return nvmlDeviceGetMigDeviceHandleByIndex(Handle h, unsigned slot, Handle *out) {
    u64 mig;
    Return code = number(h, "mig", 0, &mig);
    if (code != OK) return code;
    /* Slot 0 stays empty: instances needn't be the first ones. */
    if (slot == 0 || slot > mig) return NOT_FOUND;
    *out = calloc(1, sizeof **out);
    (*out)->gpu = h->gpu;
    (*out)->slot = (int)slot;
    return OK;
}

Return nvmlDeviceGetEccMode(Handle h, unsigned *current, unsigned *pending) {
    u64 ecc;
    Return code = number(h, "ecc", 1, &ecc);
    if (code == OK) *current = *pending = (unsigned)ecc;
    return code;
}
Return nvmlDeviceGetTotalEccErrors(Handle h, int kind, int counter, u64 *out) {
    if (kind != 1) return number(h, "ecc_corrected", 77, out);
    return number(h, counter ? "ecc_aggregate" : "ecc_volatile", 0, out);
}
Return nvmlDeviceGetRemappedRows(Handle h, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    u64 one, other = 0;
    Return code = number(h, "remap_pending", 0, &one);
    if (code == OK) code = number(h, "remap_failed", 0, &other);
    if (code == OK) *corrected = *uncorrected = 0, *pending = one, *failed = other;
    return code;
}
Return nvmlDeviceGetCurrentClocksThrottleReasons(Handle h, u64 *out) { return number(h, "throttle", 1, out); }
Return nvmlDeviceGetTemperature(Handle h, int sensor, unsigned *out) {
    u64 value;
    (void)sensor;
    Return code = number(h, "temperature", 31, &value);
    if (code == OK) *out = (unsigned)value;
    return code;
}
typedef struct { unsigned version, sensor; int temperature; } Temperature;
Return nvmlDeviceGetTemperatureV(Handle h, Temperature *out) {
    return nvmlDeviceGetTemperature(h, 0, (unsigned *)&out->temperature);
}
static Return clock_of(Handle h, const char *key, unsigned usual, unsigned *out) {
    u64 value;
    Return code = number(h, key, usual, &value);
    if (code == OK) *out = (unsigned)value;
    return code;
}
Return nvmlDeviceGetClockInfo(Handle h, int kind, unsigned *out) { return clock_of(h, kind == 1 ? "clock" : "clock_other", 345, out); }
Return nvmlDeviceGetMaxClockInfo(Handle h, int kind, unsigned *out) { return clock_of(h, kind == 1 ? "clock_max" : "clock_other", 1980, out); }
Return nvmlDeviceGetUtilizationRates(Handle h, unsigned *out) {
    u64 value;
    Return code = number(h, "utilisation", 0, &value);
    if (code == OK) out[0] = (unsigned)value, out[1] = 0;
    return code;
}

Return nvmlDeviceGetNvLinkState(Handle h, unsigned link, unsigned *out) {
    u64 links, up = 0;
    Return code = number(h, "nvlinks", 18, &links);
    if (code == OK) code = number(h, "nvlinks_up", links, &up);
    if (code != OK) return code;
    if (link >= links) return INVALID;
    *out = link < up;
    return OK;
}
Return nvmlDeviceGetNvLinkErrorCounter(Handle h, unsigned link, int counter, u64 *out) {
    (void)counter;
    *out = 0;
    return link ? OK : number(h, "nvlink_errors", 0, out);
}

typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; } Fabric;
Return nvmlDeviceGetGpuFabricInfoV(Handle h, Fabric *out) {
    u64 state, status = 0;
    Return code = number(h, "fabric", 3, &state);
    if (code == OK) code = number(h, "fabric_status", 0, &status);
    if (code == OK) out->state = state, out->status = (int)status;
    return code;
}
typedef struct { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; } OldFabric;
Return nvmlDeviceGetGpuFabricInfo(Handle h, OldFabric *out) {
    Fabric info;
    Return code = nvmlDeviceGetGpuFabricInfoV(h, &info);
    if (code == OK) out->state = info.state, out->status = info.status;
    return code;
}

typedef struct { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; } Process;

/* "PID:BYTES:KIND:SLOT,...": kind C, G or M; bytes "-" are told to nobody; slot -1 is the whole GPU. */
static Return listed(Handle h, char kind, unsigned *count, Process *out) {
    char all[4096], bytes[32], what;
    unsigned pid, space = *count, found = 0;
    int slot, length;
    Return code = text(h, "holders", "", all, sizeof all);
    if (code != OK) return code;
    for (const char *one = all; sscanf(one, "%u:%31[^:]:%c:%d%n", &pid, bytes, &what, &slot, &length) == 4; one += length + (one[length] == ',')) {
        if (what != kind || (h->slot >= 0 && slot != h->slot)) continue;
        if (found < space) out[found] = (Process){pid, bytes[0] == '-' ? ~0ull : strtoull(bytes, NULL, 10), ~0u, ~0u};
        found++;
    }
    *count = found;
    return found > space ? TOO_SMALL : OK;
}

Return nvmlDeviceGetComputeRunningProcesses_v3(Handle h, unsigned *count, Process *out) {
    u64 running, each = 0, first, space = *count;
    char holders[4096];
    Return hidden = h->slot < 0 ? number(h, "whole_processes", 0, &first) : OK;
    if (hidden != OK) return hidden;
    if (h->slot >= 0 || text(h, "holders", "", holders, sizeof holders) != OK || holders[0]) return listed(h, 'C', count, out);
    Return code = number(h, "processes", 0, &running);
    if (code == OK) code = number(h, "process_memory", 1ull << 30, &each);
    if (number(h, "process_id", 4000, &first) != OK) first = 4000;
    if (code != OK) return code;
    *count = (unsigned)running;
    if (running > space) return TOO_SMALL;
    for (u64 i = 0; i < running; i++) out[i] = (Process){(unsigned)(first + i), each, ~0u, ~0u};
    return OK;
}
Return nvmlDeviceGetComputeRunningProcesses_v2(Handle h, unsigned *count, Process *out) {
    return listed(h, 'C', count, out);
}
Return nvmlDeviceGetGraphicsRunningProcesses_v3(Handle h, unsigned *count, Process *out) {
    return listed(h, 'G', count, out);
}
Return nvmlDeviceGetMPSComputeRunningProcesses_v3(Handle h, unsigned *count, Process *out) {
    return listed(h, 'M', count, out);
}

Return nvmlDeviceGetP2PStatus(Handle one, Handle other, int index, int *out) {
    char value[32];
    (void)one, (void)other, (void)index;
    if (lookup("", "p2p", value, sizeof value) && value[0] == '!') return atoi(value + 1);
    *out = library("p2p", 0);
    return OK;
}
