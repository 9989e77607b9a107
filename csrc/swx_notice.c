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

/* The end of the line that starts at `at`, behind its newline. */
static const uint8_t *line_end(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *newline = memchr(at, '\n', (size_t)(end - at));
    return newline ? newline + 1 : end;
}

static bool line_is_notice(const uint8_t *at, const uint8_t *next)
{
    return *at == '[' && next[-1] == '\n' && is_notice(at, next - 1);
}

uint32_t swx_notice_count(const uint8_t *text, size_t size)
{
    uint32_t lines = 0;
    for (const uint8_t *at = text, *end = size ? text + size : text; at < end;) {
        const uint8_t *next = line_end(at, end);
        lines += line_is_notice(at, next);
        at = next;
    }
    return lines;
}

size_t swx_notice_remove(uint8_t *text, size_t size)
{
    size_t kept = 0;
    for (size_t at = 0; at < size;) {
        size_t length = (size_t)(line_end(text + at, text + size) - (text + at));
        if (!line_is_notice(text + at, text + at + length)) {
            memmove(text + kept, text + at, length);
            kept += length;
        }
        at += length;
    }
    return kept;
}
