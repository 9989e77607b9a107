#include "swx_proc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ssize_t swx_proc_read(const char *path, char *text, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd >= 0 ? read(fd, text, room - 1) : -1;
    int failed = errno;
    if (fd >= 0) {
        close(fd);
    }
    text[size > 0 ? size : 0] = 0;
    errno = failed;
    return size;
}

swx_status swx_proc_read_stat(pid_t pid, swx_proc_stat *stat)
{
    enum { FIRST = 4, LAST = 28 };
    char path[48], text[1024], *end;
    uint64_t fields[LAST + 1];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    ssize_t size = swx_proc_read(path, text, sizeof(text));
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
    stat->group = (pid_t)fields[5];
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

void swx_proc_end(DIR *directory)
{
    if (directory) {
        closedir(directory);
    }
}

void swx_proc_children_begin(swx_proc_children *children, pid_t process, pid_t thread)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)process, (int)thread);
    children->fd = open(path, O_RDONLY | O_CLOEXEC);
    children->left = 1 << 16;
    children->at = children->size = 0;
}

/* The file has numbers, with a space behind each. */
pid_t swx_proc_children_next(swx_proc_children *children)
{
    pid_t pid = 0;
    while (children->fd >= 0 && children->left) {
        if (children->at == children->size) {
            ssize_t size = read(children->fd, children->text, sizeof(children->text));
            children->at = 0;
            children->size = size > 0 ? (size_t)size : 0;
            if (!children->size) {
                break;
            }
        }
        char c = children->text[children->at++];
        if (c >= '0' && c <= '9') {
            pid = 10 * pid + (c - '0');
        } else if (pid) {
            children->left--;
            return pid;
        }
    }
    if (children->fd >= 0) {
        close(children->fd);
    }
    children->fd = -1;
    return 0;
}
