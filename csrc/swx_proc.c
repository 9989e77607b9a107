#include "swx_proc.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ssize_t swx_proc_read(pid_t pid, const char *name, char *text, size_t room)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd >= 0 ? read(fd, text, room - 1) : -1;
    int failed = errno;
    swx_close(&fd);
    text[size > 0 ? size : 0] = 0;
    errno = failed;
    return size;
}

ssize_t swx_proc_read_link(pid_t pid, const char *name, char *text, size_t room)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    ssize_t size = readlink(path, text, room - 1);
    text[size > 0 ? size : 0] = 0;
    return size;
}

swx_proc_call swx_proc_parse_call(const char *text)
{
    char *end = (char *)text;
    bool good = isdigit((uint8_t)*text); /* else "running", "-1 ..." or nothing */
    swx_proc_call call = { .number = good ? strtol(text, &end, 10) : -1 };
    for (size_t i = 0; good && i < SWX_COUNT(call.values); i++) {
        const char *digits = end + 3;
        good = strncmp(end, " 0x", 3) == 0 && isxdigit((uint8_t)*digits);
        call.values[i] = good ? strtoull(digits, &end, 16) : 0;
    }
    return good ? call : (swx_proc_call){ .number = -1 };
}

swx_status swx_proc_read_stat(pid_t pid, swx_proc_stat *stat)
{
    enum { FIRST = 4, LAST = 28 };
    char text[1024], *end;
    uint64_t fields[LAST + 1];
    ssize_t size = swx_proc_read(pid, "stat", text, sizeof(text));
    if (size <= 0) {
        return size == 0 || errno == ENOENT || errno == ESRCH ? SWX_ECLOSED : SWX_ESYS;
    }
    char *at = strrchr(text, ')'); /* the name before it may hold anything */
    if (!at || text + size - at < 4) {
        return SWX_ESYS;
    }
    stat->state = at[2];
    at += 3;
    for (int i = FIRST; i <= LAST; i++, at = end) {
        fields[i] = strtoull(at, &end, 10);
        if (end == at) {
            return SWX_ESYS;
        }
    }
    stat->parent = (pid_t)fields[4];
    stat->reaped = fields[11];
    stat->threads = fields[20];
    stat->started = fields[22];
    stat->stack = fields[28];
    return SWX_OK;
}

pid_t swx_proc_next(DIR *directory)
{
    const struct dirent *entry;
    while (directory && (entry = readdir(directory))) {
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9') {
            return (pid_t)strtol(entry->d_name, NULL, 10);
        }
    }
    return 0;
}

DIR *swx_proc_threads(pid_t pid)
{
    char path[48];
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    return opendir(path);
}

void swx_proc_end(DIR *directory)
{
    if (directory) {
        closedir(directory);
    }
}

FILE *swx_proc_children(pid_t process, pid_t thread)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)process, (int)thread);
    return fopen(path, "re");
}

pid_t swx_proc_next_child(FILE **children)
{
    int pid = 0;
    if (*children && fscanf(*children, "%d", &pid) != 1) {
        fclose(*children);
        *children = NULL;
        pid = 0;
    }
    return pid;
}
