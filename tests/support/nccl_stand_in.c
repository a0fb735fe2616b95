/* A stand-in for CUDA and NCCL, so that real ranks of torch's CUDA builds run where there is no GPU: for recordings of what torch's own
   flight recorder writes over NCCL. Memory is the processor's, kernels do nothing, and an operation is done when every rank of the
   communicator (both ends of a send) has called it: each leaves a file in FAKE_NCCL_DIR. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOTHING(name) int name() { return 0; }
#define REFUSED(name) int name() { return 1; }
#define NOT_READY 600

typedef struct { char path[200]; int ranks; } Operation;
typedef struct { char bytes[128]; } Id;
typedef struct { char id[64]; int rank, ranks, calls; int pairs[2][64]; } Communicator;

static Operation last;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int device;

static int is_done(Operation *operation) {
    char path[256];
    for (int rank = 0; rank < operation->ranks; rank++) {
        snprintf(path, sizeof path, "%s-%d", operation->path, rank);
        if (access(path, F_OK)) return 0;
    }
    return 1;
}

static int call(const char *path, int rank, int ranks) {
    char own[256];
    strcpy(last.path, path);
    last.ranks = ranks;
    snprintf(own, sizeof own, "%s-%d", path, rank);
    close(open(own, O_CREAT | O_WRONLY, 0600));
    return 0;
}

/* --- CUDA's runtime ----------------------------------------------------------------------------------------------------- */

int cudaGetDeviceCount(int *count) { *count = 8; return 0; }
int cudaGetDevice(int *number) { *number = device; return 0; }
int cudaSetDevice(int number) { device = number; return 0; }
int cudaDriverGetVersion(int *version) { *version = 13000; return 0; }
int cudaGetDeviceProperties(void *properties, int number) {
    memset(properties, 0, 700);
    strcpy(properties, "Stand-in");
    ((int *)properties)[0x168 / 4] = 8; /* compute capability */
    return 0;
}
int cudaGetDeviceProperties_v2(void *properties, int number) { return cudaGetDeviceProperties(properties, number); }
int cudaDeviceGetAttribute(int *value, int attribute, int number) { *value = 1; return 0; }
int cudaDeviceGetStreamPriorityRange(int *least, int *most) { *least = 0; *most = -5; return 0; }
int cudaDeviceCanAccessPeer(int *can, int number, int peer) { *can = 0; return 0; }
int cudaMalloc(void **memory, size_t size) { *memory = aligned_alloc(512, (size + 511) / 512 * 512); return 0; }
int cudaHostAlloc(void **memory, size_t size, unsigned flags) { return cudaMalloc(memory, size); }
int cudaMemGetInfo(size_t *free, size_t *all) { *free = *all = 1UL << 34; return 0; }
int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) { *stream = malloc(8); return 0; }
int cudaStreamGetPriority(void *stream, int *priority) { *priority = 0; return 0; }
int cudaStreamIsCapturing(void *stream, int *capturing) { *capturing = 0; return 0; }
int cudaStreamGetCaptureInfo_v2(void *stream, int *capturing) { *capturing = 0; return 0; }
int cudaStreamGetCaptureInfo_v3(void *stream, int *capturing) { *capturing = 0; return 0; }
int cudaStreamGetCaptureInfo(void *stream, int *capturing) { *capturing = 0; return 0; }
int cudaEventCreateWithFlags(void **event, unsigned flags) { *event = calloc(1, sizeof(Operation)); return 0; }
int cudaEventRecord(void *event, void *stream) {
    pthread_mutex_lock(&lock);
    *(Operation *)event = last;
    pthread_mutex_unlock(&lock);
    return 0;
}
int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) { return cudaEventRecord(event, stream); }
int cudaEventQuery(void *event) { return is_done(event) ? 0 : NOT_READY; }
int cudaPointerGetAttributes(int *attributes, void *memory) { memset(attributes, 0, 32); attributes[0] = 2; return 0; }
const char *cudaGetErrorString(int error) { return error == NOT_READY ? "device not ready" : "error"; }
NOTHING(cudaFree) NOTHING(cudaStreamQuery) NOTHING(cudaStreamSynchronize) NOTHING(cudaDeviceSynchronize) NOTHING(cudaStreamWaitEvent)
NOTHING(cudaThreadExchangeStreamCaptureMode) NOTHING(cudaEventDestroy) NOTHING(cudaGetLastError) NOTHING(cudaPeekAtLastError)
NOTHING(cudaLaunchKernel) NOTHING(cudaMemsetAsync) NOTHING(cudaMemcpyAsync) NOTHING(cudaStreamDestroy)
REFUSED(cudaGetDriverEntryPoint) REFUSED(cudaGetDriverEntryPointByVersion)

/* --- CUDA's driver: torch looks that these are there ---------------------------------------------------------------------- */

int cuDevicePrimaryCtxGetState(int number, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
NOTHING(cuInit) NOTHING(cuDeviceGetAttribute) NOTHING(cuMemAddressReserve) NOTHING(cuMemRelease) NOTHING(cuMemMap) NOTHING(cuMemAddressFree)
NOTHING(cuMemSetAccess) NOTHING(cuMemUnmap) NOTHING(cuMemCreate) NOTHING(cuMemGetAllocationGranularity) NOTHING(cuMemExportToShareableHandle)
NOTHING(cuMemImportFromShareableHandle) NOTHING(cuMemRetainAllocationHandle) NOTHING(cuMemGetAllocationPropertiesFromHandle)
NOTHING(cuMemsetD32Async) NOTHING(cuMulticastAddDevice) NOTHING(cuMulticastBindMem) NOTHING(cuMulticastCreate) NOTHING(cuMulticastUnbind)
NOTHING(cuStreamWriteValue32) NOTHING(cuStreamWriteValue32_v2) NOTHING(cuGetErrorString) NOTHING(cuCtxGetCurrent) NOTHING(cuCtxSetCurrent)
NOTHING(cuCtxFromGreenCtx) NOTHING(cuCtxPopCurrent) NOTHING(cuCtxPushCurrent) NOTHING(cuGreenCtxCreate) NOTHING(cuGreenCtxDestroy)
NOTHING(cuDevSmResourceSplitByCount) NOTHING(cuDeviceGetDevResource) NOTHING(cuDevResourceGenerateDesc) NOTHING(cuGetProcAddress)
NOTHING(cuLaunchKernel) NOTHING(cuModuleLoadData) NOTHING(cuModuleGetFunction) NOTHING(cuPointerGetAttribute)

/* --- NCCL ------------------------------------------------------------------------------------------------------------------ */

int ncclGetVersion(int *version) { *version = 22105; return 0; }
int ncclGetUniqueId(Id *id) {
    unsigned long number = 0;
    int file = open("/dev/urandom", O_RDONLY);
    if (read(file, &number, sizeof number) < 0) return 1;
    close(file);
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, 60, "%lx", number);
    return 0;
}
int ncclCommInitRank(Communicator **made, int ranks, Id id, int rank) {
    *made = calloc(1, sizeof **made);
    memcpy((*made)->id, id.bytes, 60);
    (*made)->rank = rank;
    (*made)->ranks = ranks;
    return 0;
}
int ncclCommInitRankConfig(Communicator **made, int ranks, Id id, int rank, void *config) { return ncclCommInitRank(made, ranks, id, rank); }
int ncclCommInitRankScalable(Communicator **made, int ranks, int rank, int count, Id *ids, void *config) {
    return ncclCommInitRank(made, ranks, ids[0], rank);
}
static int collective(Communicator *own) {
    char path[200];
    pthread_mutex_lock(&lock);
    snprintf(path, sizeof path, "%s/%s-%d", getenv("FAKE_NCCL_DIR"), own->id, ++own->calls);
    call(path, own->rank, own->ranks);
    pthread_mutex_unlock(&lock);
    return 0;
}
static int pair(Communicator *own, int peer, int sends) {
    char path[200];
    int source = sends ? own->rank : peer, target = sends ? peer : own->rank;
    pthread_mutex_lock(&lock);
    snprintf(path, sizeof path, "%s/%s-%dto%d-%d", getenv("FAKE_NCCL_DIR"), own->id, source, target, own->pairs[sends][peer]++);
    call(path, sends, 2);
    pthread_mutex_unlock(&lock);
    return 0;
}
int ncclAllReduce(void *from, void *to, size_t count, int type, int op, Communicator *own, void *stream) { return collective(own); }
int ncclSend(void *from, size_t count, int type, int peer, Communicator *own, void *stream) { return pair(own, peer, 1); }
int ncclRecv(void *to, size_t count, int type, int peer, Communicator *own, void *stream) { return pair(own, peer, 0); }
int ncclCommGetAsyncError(void *own, int *error) { *error = 0; return 0; }
const char *ncclGetErrorString(int error) { return "error"; }
const char *ncclGetLastError(void *own) { return ""; }
NOTHING(ncclGroupStart) NOTHING(ncclGroupEnd) NOTHING(ncclCommDestroy) NOTHING(ncclCommAbort) NOTHING(ncclCommFinalize)
NOTHING(ncclCommRegister) NOTHING(ncclCommDeregister)
