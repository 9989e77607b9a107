#include "swx_notice.h"

#include <string.h>

static bool begins(const uint8_t *at, const uint8_t *end, const char *word)
{
    size_t size = strlen(word);
    return (size_t)(end - at) >= size && memcmp(at, word, size) == 0;
}

/* One line without its newline. */
static bool is_notice(const uint8_t *at, const uint8_t *end)
{
    static const char *const states[] = { "Done", "Exit ", "Hangup", "Interrupt", "Quit", "Killed", "Terminated",
                                          "Aborted", "Segmentation fault", "Broken pipe", "Alarm clock",
                                          "User defined signal 1", "User defined signal 2", "Bus error",
                                          "Illegal instruction", "Floating point exception", "Trace/breakpoint trap",
                                          "Bad system call", "CPU time limit exceeded", "File size limit exceeded",
                                          "Virtual timer expired", "Profiling timer expired", "Power failure",
                                          "Stack fault", "I/O possible", "Real-time signal " };
    if (at == end || *at++ != '[') {
        return false;
    }
    const uint8_t *digits = at;
    while (at < end && *at >= '0' && *at <= '9') {
        at++;
    }
    if (at == digits || end - at < 4 || at[0] != ']' || !strchr("+- ", at[1]) || at[1] == 0 || at[2] != ' ' ||
        at[3] != ' ') {
        return false;
    }
    at += 4;
    for (size_t i = 0; i < SWX_COUNT(states); i++) {
        if (begins(at, end, states[i])) {
            at += strlen(states[i]);
            while (at < end && ((*at >= '0' && *at <= '9') || begins(at, end, "(core dumped)"))) {
                at += *at == '(' ? (ptrdiff_t)strlen("(core dumped)") : 1; /* "Exit 127", "Done(2)" come as one word */
            }
            return at == end || *at == ' ' || *at == '(';
        }
    }
    return false;
}

size_t swx_notice_tail(const uint8_t *text, size_t size, uint32_t *lines)
{
    size_t tail = 0;
    *lines = 0;
    while (tail < size && text[size - tail - 1] == '\n') {
        const uint8_t *end = text + size - tail - 1;
        const uint8_t *start = end;
        while (start > text && start[-1] != '\n') {
            start--;
        }
        if (!is_notice(start, end)) {
            break;
        }
        tail += (size_t)(end - start) + 1;
        ++*lines;
    }
    return tail;
}
