#include "swx_hints.h"

#include <string.h>

#include "swx_session.h"

/* Whether the text holds an assignment to PS1. */
static bool assigns_prompt(const char *text, size_t size)
{
    const char *end = text + size, *at = text;
    while ((at = memmem(at, (size_t)(end - at), "PS1=", 4))) {
        if (at == text || strchr(" \t\n;&|({'\"", at[-1])) {
            return true;
        }
        at += 4;
    }
    return false;
}

/* Whether a command that mentions exec holds a redirection of standard error, but for one to where standard output goes
 * anyway. */
static bool redirects_stderr(const char *text, size_t size)
{
    const char *end = text + size, *at = text;
    bool stdout_too = false;
    while ((at = memchr(at, '>', (size_t)(end - at)))) {
        bool both = at > text && at[-1] == '&', second = at > text && at[-1] == '2';
        bool copies = end - at > 2 && at[1] == '&' && at[2] == '1';
        if (both || (second && (!copies || stdout_too)) || (!second && end - at > 1 && at[1] == '&')) {
            return true;
        }
        stdout_too = stdout_too || !second;
        at++;
    }
    return false;
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Whether the text holds a word that has the shell itself read or wait. */
static bool has_shell_wait(const char *text, size_t size)
{
    static const char *const words[] = { "read", "readarray", "mapfile", "select", "wait" };
    for (size_t i = 0; i < SWX_COUNT(words); i++) {
        size_t length = strlen(words[i]);
        const char *end = text + size, *at = text;
        while ((at = memmem(at, (size_t)(end - at), words[i], length))) {
            bool begins = at == text || !is_letter(at[-1]);
            at += length;
            if (begins && (at == end || !is_letter(*at))) {
                return true;
            }
        }
    }
    return false;
}

/* What the session has to know about a command before it runs. */
unsigned swx_hints_of(const swx_scan *scan, const char *text, size_t size, bool carrier)
{
    unsigned hints = ((scan->flags & SWX_SCAN_STTY) ? SWX_HINT_STTY : 0) |
                     ((scan->flags & SWX_SCAN_JOBS) ? SWX_HINT_JOBS : 0) |
                     ((scan->flags & SWX_SCAN_PROMPT) && assigns_prompt(text, size) ? SWX_HINT_PROMPT : 0);
    hints |= (scan->flags & SWX_SCAN_EXEC) && redirects_stderr(text, size) ? SWX_HINT_STDERR : 0;
    hints |= (scan->flags & SWX_SCAN_EXEC) && (hints & SWX_HINT_PROMPT) && memchr(text, '<', size) ? SWX_HINT_LAST : 0;
    hints |=
        (scan->flags & SWX_SCAN_EXEC ? SWX_HINT_EXEC : 0) | (scan->flags & SWX_SCAN_BACKGROUND ? SWX_HINT_STARTS : 0);
    bool hides = (scan->flags & SWX_SCAN_PROMPT) || (hints & SWX_HINT_STDERR);
    hints |= hides && !(scan->flags & SWX_SCAN_UNKNOWN) && !has_shell_wait(text, size) ? SWX_HINT_HIDES : 0;
    if (!carrier) {
        return hints | ((scan->flags & SWX_SCAN_EXEC) ? SWX_HINT_SETTLE : 0) |
               ((scan->flags & SWX_SCAN_PROMPT) ? SWX_HINT_SOURCE : 0);
    }
    const unsigned source = SWX_SCAN_PROMPT | SWX_SCAN_PARSE_STATE | SWX_SCAN_EXEC;
    return hints | ((scan->flags & SWX_SCAN_EXEC) && memmem(text, size, ">(", 2) ? SWX_HINT_SETTLE : 0) |
           ((scan->flags & source) ? SWX_HINT_SOURCE : 0) | ((scan->flags & SWX_SCAN_EDITING) ? SWX_HINT_EDITING : 0);
}
