/* A libcuda.so.1 that does what the environment variable FAKE_CUDA tells it to: ";init=803;version=12040;does=hang;". */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *setting(const char *wanted) {
    const char *all = getenv("FAKE_CUDA");
    const char *found = all ? strstr(all, wanted) : NULL;
    return found ? found + strlen(wanted) : NULL;
}

int cuDriverGetVersion(int *version) {
    const char *told = setting(";version=");
    *version = told ? atoi(told) : 13000;
    return 0;
}

int cuInit(unsigned flags) {
    const char *does = setting(";does="), *code = setting(";init=");
    (void)flags;
    if (does && !strncmp(does, "hang", 4)) for (;;) pause();
    if (does && !strncmp(does, "slow", 4)) sleep(3);
    if (does && !strncmp(does, "crash", 5)) *(volatile int *)8 = 1;
    if (getenv("CUDA_VISIBLE_DEVICES") && !*getenv("CUDA_VISIBLE_DEVICES")) return 100;
    return code ? atoi(code) : 0;
}
