/* Makes syncs fail on purpose, as a disk that loses writes does.
 *
 * While the file named by LOGMILL_FAILING_SYNC exists, it holds how many syncs still succeed; after those,
 * every sync fails with EIO. Only for tests; loaded with LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

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

static int sync_with(const char *name, int fd) {
    if (fails()) {
        errno = EIO;
        return -1;
    }
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return real(fd);
}

int fsync(int fd) { return sync_with("fsync", fd); }

int fdatasync(int fd) { return sync_with("fdatasync", fd); }
