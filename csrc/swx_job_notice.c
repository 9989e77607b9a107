#include "swx_job_notice.h"

#include "swx_grammar.h"

#include <string.h>

enum {
    STATE_WIDTH = 24,
    COMMAND_COLUMN = 4 + STATE_WIDTH, /* from the bracket behind the number */
    COMMAND_MOST = 64 << 10,          /* bytes of a command of several lines */
    COMMANDS_MOST = 1 << 20           /* bytes of all of them that are read in one text, which a program may write */
};

static bool begins(const uint8_t *at, const uint8_t *end, const char *word)
{
    size_t size = strlen(word);
    return (size_t)(end - at) >= size && memcmp(at, word, size) == 0;
}

static const uint8_t *behind_digits(const uint8_t *at, const uint8_t *end)
{
    while (at < end && *at >= '0' && *at <= '9') {
        at++;
    }
    return at;
}

/* How a job may end, a NUL behind each. */
static const char states[] =
    "Done\0Exit \0Hangup\0Interrupt\0Quit\0Killed\0Terminated\0Aborted\0Segmentation fault\0Broken pipe\0Alarm clock\0"
    "User defined signal 1\0User defined signal 2\0Bus error\0Illegal instruction\0Floating point exception\0"
    "Trace/breakpoint trap\0Bad system call\0CPU time limit exceeded\0File size limit exceeded\0"
    "Virtual timer expired\0Profiling timer expired\0Power failure\0Stack fault\0I/O possible\0Real-time signal \0";

/* The rest of a line, without its newline. */
static bool is_notice(const uint8_t *at, const uint8_t *end)
{
    if (at == end || *at++ != '[') {
        return false;
    }
    const uint8_t *digits = at;
    at = behind_digits(at, end);
    if (at == digits || end - at <= 4 + STATE_WIDTH || at[0] != ']' || !memchr("+- ", at[1], 3) || at[2] != ' ' ||
        at[3] != ' ') {
        return false;
    }
    at += 4;
    const uint8_t *command = at + STATE_WIDTH;
    for (const char *state = states; *state; state += strlen(state) + 1) {
        if (begins(at, end, state)) {
            at += strlen(state);
            while (at < command && ((*at >= '0' && *at <= '9') || *at == '(' || *at == ')')) {
                at++; /* "Exit 127", "Done(2)" come as one word */
            }
            while (at < command && *at == ' ') {
                at++;
            }
            return at == command;
        }
    }
    return false;
}

/* Whether the last bytes of a text may become a notice. */
static bool is_head(const uint8_t *at, const uint8_t *end)
{
    static const char *const rest[] = { "]", "+- ", " ", " " };
    const uint8_t *digits = ++at;
    at = behind_digits(at, end);
    bool may_be = at == end || at > digits;
    for (size_t i = 0; i < SWX_COUNT(rest) && at < end; i++) {
        may_be = may_be && memchr(rest[i], *at++, strlen(rest[i]));
    }
    return may_be;
}

/* The end of the line that starts at `at`, behind its newline. */
static const uint8_t *line_end(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *newline = memchr(at, '\n', (size_t)(end - at));
    return newline ? newline + 1 : end;
}

/* The notice at the end of a whole line, or NULL: the last of several, because the others may be a program's. */
static const uint8_t *notice_of_line(const uint8_t *line, const uint8_t *next)
{
    const uint8_t *at = next;
    while (next[-1] == '\n' && (at = memrchr(line, '[', (size_t)(at - line)))) {
        if (is_notice(at, next - 1)) {
            return at;
        }
    }
    return NULL;
}

/* The end of a notice whose first line ends at `next`.  The command may have several lines: a loop as bash prints it, a
 * text in quotes, a here-document (with an empty line after it).  After a notice with "(wd: ...)" bash prints the
 * present directory in a line of its own.  *budget: bytes of commands that may still be read. */
static const uint8_t *notice_end(const uint8_t *notice, const uint8_t *next, const uint8_t *end, size_t *budget)
{
    const uint8_t *command = memchr(notice, ']', (size_t)(next - notice)) + COMMAND_COLUMN;
    while (command < next && *command == ' ') { /* the column is wider in bash 5.3 */
        command++;
    }
    size_t most = *budget < COMMAND_MOST ? *budget : COMMAND_MOST;
    most = (size_t)(end - command) < most ? (size_t)(end - command) : most;
    size_t size = swx_grammar_first(command, most);
    *budget -= size ? size : most;
    next = command + size > next ? line_end(command + size, end) : next;
    bool told = memmem(notice, (size_t)(next - notice), "  (wd: ", 7) != NULL && begins(next, end, "(wd now: ");
    const uint8_t *behind = told ? line_end(next, end) : next;
    return behind[-1] == '\n' ? behind : next;
}

uint32_t swx_job_notice_count(const uint8_t *text, size_t size, uint32_t most)
{
    uint32_t notices = 0;
    size_t budget = COMMANDS_MOST;
    for (const uint8_t *at = text, *end = size ? text + size : text; at < end;) {
        const uint8_t *next = line_end(at, end), *notice = notice_of_line(at, next);
        if (notice && notices++ == most) {
            return 0;
        }
        at = notice ? notice_end(notice, next, end, &budget) : next;
    }
    return notices;
}

size_t swx_job_notice_begin(const uint8_t *text, size_t size)
{
    if (!size) {
        return 0;
    }
    const uint8_t *next = text;
    for (const uint8_t *at = text, *end = text + size; (at = memchr(at, '[', (size_t)(end - at))); at++) {
        next = at < next ? next : line_end(at, end);
        bool may_be = next[-1] != '\n' && next - at < SWX_JOB_NOTICE_HEAD ? is_head(at, next)
                                                                          : is_notice(at, next - (next[-1] == '\n'));
        if (may_be) {
            return (size_t)(at - text);
        }
    }
    return size;
}

size_t swx_job_notice_lead(const uint8_t *text, size_t size)
{
    const uint8_t *at = text, *end = size ? text + size : text; /* there may be no text */
    size_t budget = COMMANDS_MOST;
    while (at < end) {
        const uint8_t *next = line_end(at, end);
        if (next[-1] != '\n' || !is_notice(at, next - 1)) {
            break;
        }
        at = notice_end(at, next, end, &budget);
    }
    return (size_t)(at - text);
}

size_t swx_job_notice_remove(uint8_t *text, size_t size)
{
    size_t kept = 0, budget = COMMANDS_MOST;
    if (!size) {
        return 0; /* there may be no text */
    }
    const uint8_t *end = text + size;
    for (const uint8_t *at = text; at < end;) {
        const uint8_t *next = line_end(at, end), *notice = notice_of_line(at, next);
        size_t length = (size_t)((notice ? notice : next) - at);
        memmove(text + kept, at, length);
        kept += length;
        at = notice ? notice_end(notice, next, end, &budget) : next;
    }
    return kept;
}
