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

unsigned swx_hints_of(const swx_scan *scan, const char *text, size_t size, bool carrier)
{
    const unsigned flags = scan->flags;
    const bool exec = flags & SWX_SCAN_EXEC, prompt = flags & SWX_SCAN_PROMPT;
    const bool assigns = prompt && assigns_prompt(text, size), to_elsewhere = exec && redirects_stderr(text, size);
    bool source = prompt, settle = exec;
    unsigned hints = flags;
    if (carrier) {
        source = prompt || exec || flags & SWX_SCAN_PARSE_STATE;
        settle = exec && memmem(text, size, ">(", 2);
    }
    hints |= source ? SWX_HINT_SOURCE : 0;
    hints |= settle ? SWX_HINT_SETTLE : 0;
    hints |= assigns ? SWX_HINT_PROMPT : 0;
    hints |= assigns && exec && memchr(text, '<', size) ? SWX_HINT_LAST : 0;
    hints |= to_elsewhere ? SWX_HINT_STDERR : 0;
    hints |= (prompt || to_elsewhere) && !(flags & SWX_SCAN_UNKNOWN) ? SWX_HINT_HIDES : 0;
    return hints;
}
