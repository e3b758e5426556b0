/* Makes syncs fail or take longer on purpose, as those of a bad disk do.
 *
 * While the file named by LOGMILL_FAILING_SYNC exists, it holds how many syncs still succeed; after those,
 * every sync fails with EIO. Each sync of the file whose name is LOGMILL_SLOW_FILE first waits for LOGMILL_SYNC_MS
 * milliseconds. Only for tests; loaded with LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(void) {
    const char *path = getenv("LOGMILL_FAILING_SYNC");
    FILE *file = path ? fopen(path, "r+") : NULL;
    if (!file) return 0;
    int left = 0;
    if (fscanf(file, "%d", &left) != 1) left = 0;
    if (left > 0) {
        rewind(file);
        fprintf(file, "%d\n", left - 1);
    }
    fclose(file);
    return left == 0;
}

static void wait_if_slow(int fd) {
    const char *slow = getenv("LOGMILL_SLOW_FILE"), *wait_ms = getenv("LOGMILL_SYNC_MS");
    char link[64], path[4096];
    if (!slow || !wait_ms) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return;
    path[length] = 0;
    const char *name = strrchr(path, '/');
    if (name && !strcmp(name + 1, slow)) usleep(1000 * (useconds_t)atoi(wait_ms));
}

static int sync_with(const char *name, int fd) {
    wait_if_slow(fd);
    if (fails()) {
        errno = EIO;
        return -1;
    }
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return real(fd);
}

int fsync(int fd) { return sync_with("fsync", fd); }

int fdatasync(int fd) { return sync_with("fdatasync", fd); }
