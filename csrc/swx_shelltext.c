#include "swx_shelltext.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { LINE_ROOM = 1024, PIECE = 4000, MODES_MAX = 400 };

#define STTY "builtin command -p stty " /* the user may have changed PATH */

/* As swx_pty_apply_modes has it: what is typed arrives as lines, and no letter is a key.  Echo, too, because here
 * nothing could put it out of sight while a command is typed.  What only some implementations know comes last, each by
 * itself. */
#define KEPT_LINES "icanon isig icrnl -igncr -inlcr -istrip -echo -echonl noflsh"
#define KEPT_KEYS "intr '^C' quit '^\\' erase '^?' kill '^U' eof '^D' start '^Q' stop '^S' susp '^Z'"
#define MORE_KEPT "iexten -parmrk -inpck -iuclc lnext '^V' werase '^W' rprnt '^R' eol '^-' eol2 '^-'"

/* printf into a buffer; our texts are short, so a fixed line is enough. */
__attribute__((format(printf, 2, 3))) static swx_status add(swx_buf *out, const char *format, ...)
{
    char line[LINE_ROOM];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    if (size < 0 || size >= LINE_ROOM) {
        return SWX_ELIMIT;
    }
    return swx_buf_append(out, line, (size_t)size);
}

swx_status swx_shelltext_prompts(swx_buf *out, const swx_marks *marks)
{
    char ps0[SWX_MARKS_TEXT], ps1[SWX_MARKS_TEXT];
    swx_marks_ps0(marks, ps0);
    swx_marks_ps1(marks, ps1);
    /* Quoted as a whole: under `set -k` an assignment is no argument. */
    return add(out, "builtin declare -g +ilux 'PS0=%s' 'PS1=%s' 'PS2=' || builtin :", ps0, ps1);
}

/* A group of which nothing is shown; where its first word may be an alias, simple commands that are each without stdout
 * and stderr. */
#define OPEN(bare) ((bare) ? "" : "{ ")
#define CLOSE(bare) ((bare) ? SWX_BARE_CLOSE : SWX_GROUP_CLOSE)

swx_status swx_shelltext_reassert(swx_buf *out, const swx_marks *marks, bool bare)
{
    char ps0[SWX_MARKS_TEXT], ps1[SWX_MARKS_TEXT];
    swx_marks_ps0(marks, ps0);
    swx_marks_ps1(marks, ps1);
    return add(out,
               "builtin declare -ga 'PROMPT_COMMAND[7734]=%sbuiltin declare -g +ilux '\\''PS0=%s'\\'' '\\''PS1=%s'\\'' "
               "'\\''PS2='\\''%s' || builtin :",
               OPEN(bare), ps0, ps1, CLOSE(bare));
}

/* The element runs before the ones that mark or show the end of a command. */
static swx_status add_kept_modes(swx_buf *out, bool bare)
{
    char text[LINE_ROOM], *at = text;
    const char *grouped = STTY KEPT_LINES " " KEPT_KEYS " || builtin :; " STTY MORE_KEPT SWX_GROUP_CLOSE;
    const char *single = STTY KEPT_LINES " " KEPT_KEYS SWX_BARE_CLOSE "; " STTY MORE_KEPT SWX_BARE_CLOSE;
    for (const char *from = bare ? single : grouped; *from; from++) {
        at += *from == '\'' ? sprintf(at, "'\\''") : sprintf(at, "%c", *from);
    }
    return add(out, "builtin declare -ga 'PROMPT_COMMAND[7732]=%s%s' || builtin :; ", OPEN(bare), text);
}

swx_status swx_shelltext_modes(swx_buf *out)
{
    return add(out, "{ " STTY "sane -echo -opost noflsh || builtin :; } 2>/dev/null");
}

bool swx_shelltext_is_modes(const uint8_t *text, size_t size)
{
    bool any = false;
    for (size_t i = 0; i < size; i++) {
        uint8_t letter = text[i] | 0x20;
        any = any || text[i] == ':';
        if (!(text[i] >= '0' && text[i] <= '9') && !(letter >= 'a' && letter <= 'z') && text[i] != ':' &&
            text[i] != '=') {
            return false;
        }
    }
    return any && size <= MODES_MAX;
}

static swx_status add_modes_question(swx_buf *out, const swx_marks *marks, swx_modes_question question)
{
    swx_status status = add(out, "builtin printf '\\033]7733;%%s;%d\\007\\n' %s >&0; ", SWX_MARK_VALUE, marks->nonce);
    if (status == SWX_OK && question == SWX_MODES_FIRST) {
        status = add(out, "case ${#PROMPT_COMMAND[@]}:$(builtin declare -f; builtin alias; builtin trap) in "
                          "1:*PS[01]*|1:*PROMPT_*) builtin echo 1;; 1:*) builtin echo 0;; *) builtin echo 1;; esac >&0 "
                          "2>/dev/null; ");
    }
    if (status == SWX_OK && question == SWX_MODES_KEEP) {
        status = add(out, STTY KEPT_LINES " " KEPT_KEYS " -opost >&0 2>/dev/null || builtin :; ");
        status = status == SWX_OK ? add(out, STTY MORE_KEPT " >&0 2>/dev/null || builtin :; ") : status;
    }
    return status == SWX_OK ? add(out, STTY "-g >&0 2>/dev/null || builtin :; ") : status;
}

swx_status swx_shelltext_question(swx_buf *out, const swx_marks *marks, swx_modes_question question, const char *answer)
{
    /* The nonce is an argument of printf, so that the line itself, if it is ever echoed, holds no mark. */
    swx_status status =
        add(out,
            SWX_QUESTION "\\033]7733;%%s;%d;%%s\\007%%s %%q\\033]7733;%%s;%d\\007%%s\\033]7733;%%s;%d\\007%%s"
                         "\\033]7733;%%s;%d\\007%%s' %s \"$?\" \"${PIPESTATUS[*]@A}\"",
            SWX_MARK_REPORT, SWX_MARK_VALUE, SWX_MARK_VALUE, SWX_MARK_VALUE, marks->nonce);
    /* PS1 may be unset, which is an error under `set -u`. */
    if (status == SWX_OK) {
        status = add(out, " \"$_\" %s \"${PS1+${PS1@P}}\" %s \"${PS0+${PS0@P}}\" %s \"${PS2+${PS2@P}}\" >%s; ",
                     marks->nonce, marks->nonce, marks->nonce, answer);
    }
    if (status == SWX_OK && question != SWX_MODES_SKIP) {
        status = add_modes_question(out, marks, question);
    }
    char end[64];
    snprintf(end, sizeof(end), "builtin printf '\\033]7733;%%s;%d;%%s\\007' %s", SWX_MARK_END, marks->nonce);
    return status == SWX_OK
               ? add(out, "builtin test -t 2 || builtin [ -t 2 ] && %s \"1${PS1+${PS1@a}}\" >%s || %s 0 >%s\n", end,
                     answer, end, answer)
               : status;
}

/* The next code in `[0]="1" [1]="0")`, behind which *at is then; -1: there is none. */
static int next_code(const uint8_t **at, const uint8_t *end)
{
    const uint8_t *from = *at != end ? memmem(*at, (size_t)(end - *at), "=\"", 2) : NULL;
    int code = 0, digits = 0;
    for (from = from ? from + 2 : end; from < end && *from >= '0' && *from <= '9' && digits < 3; digits++) {
        code = code * 10 + (*from++ - '0');
    }
    *at = from;
    return digits && code < 256 ? code : -1;
}

/* `(exit a) | (exit b) && :`: sets `$?` and PIPESTATUS, and as a member of an AND-OR list that is not its last one it
 * triggers neither `set -e` nor an ERR trap. */
static swx_status add_status(swx_buf *out, const swx_restore *restore)
{
    const uint8_t *at = restore->pipestatus, *end = restore->pipestatus_size ? at + restore->pipestatus_size : at;
    int stages = 0, last = -1;
    for (int code; (code = next_code(&at, end)) >= 0; stages++) {
        last = code;
    }
    bool usable = stages <= SWX_PIPE_MAX && last == restore->code;
    swx_status status = usable ? SWX_OK : add(out, "(builtin exit %d)", restore->code);
    at = restore->pipestatus;
    for (int i = 0; usable && i < stages && status == SWX_OK; i++) {
        status = add(out, "%s(builtin exit %d)", i ? "|" : "", next_code(&at, end));
    }
    return status == SWX_OK ? add(out, restore->code ? " && builtin :\n" : " || builtin :\n") : status;
}

/* Whether the text is one word as `printf %q` writes it.  Where another process has written between the marks it is
 * not, and must not be typed. */
static bool is_quoted_word(const uint8_t *text, size_t size)
{
    bool ansi = size > 2 && text[0] == '$' && text[1] == '\'';
    if (size == 2 && text[0] == '\'' && text[1] == '\'') {
        return true;
    }
    size_t at = ansi ? 2 : 0, end = ansi ? size - 1 : size;
    for (; at < end; at++) {
        if (text[at] < ' ' || text[at] == 0x7f ||
            (ansi ? text[at] == '\'' : strchr(" '\"$`;&|<>()*?[]{}!^,", text[at]) != NULL)) {
            return false;
        }
        at += text[at] == '\\';
    }
    return at == end && (!ansi || text[end] == '\'');
}

/* Where the next character of such a word begins, behind the one at `at`: a backslash takes what it quotes along. */
static size_t behind_character(const uint8_t *text, size_t size, size_t at, bool ansi)
{
    if (text[at] != '\\') {
        for (at++; at < size && (text[at] & 0xc0) == 0x80; at++) { /* the rest of a character of UTF-8 */
        }
        return at;
    }
    size_t digits = 0;
    while (ansi && digits < 3 && at + 1 + digits < size && text[at + 1 + digits] >= '0' &&
           text[at + 1 + digits] <= '7') {
        digits++;
    }
    return at + 1 + (digits ? digits : 1);
}

/* Appends a word of `printf %q` to a line that holds `used` bytes; no line becomes longer than a terminal takes. */
static swx_status add_word(swx_buf *out, const uint8_t *text, size_t size, size_t used)
{
    bool ansi = size > 2 && text[0] == '$' && text[1] == '\'';
    size_t start = 0, at = ansi ? 2 : 0;
    swx_status status = SWX_OK;
    while (at < size && status == SWX_OK) {
        size_t next = behind_character(text, size, at, ansi);
        if (used + next - start > PIECE) {
            status = swx_buf_append(out, text + start, at - start);
            status = status == SWX_OK ? add(out, ansi ? "'\\\n$'" : "\\\n") : status;
            start = at;
            used = ansi ? 2 : 0;
        }
        at = next;
    }
    return status == SWX_OK ? swx_buf_append(out, text + start, size - start) : status;
}

swx_status swx_shelltext_restore(swx_buf *out, const swx_marks *marks, const swx_restore *restore)
{
    swx_status status = SWX_OK;
    size_t held = out->size;
    if (restore->prompt_variables) {
        status = add(out, "builtin shopt -s promptvars; ");
    }
    if (status == SWX_OK && restore->modes_size && swx_shelltext_is_modes(restore->modes, restore->modes_size)) {
        status = add(out, STTY "%.*s 2>/dev/null <&0 || builtin :; ", (int)restore->modes_size,
                     (const char *)restore->modes);
    }
    if (status == SWX_OK && restore->disarm) {
        status = add(out, "builtin unset PROMPT_COMMAND; ");
    }
    if (status == SWX_OK && restore->keep_modes) {
        status = add_kept_modes(out, restore->brace_may_be_alias);
    } else if (status == SWX_OK && restore->unkeep_modes) {
        status = add(out, "builtin unset 'PROMPT_COMMAND[7732]' 2>/dev/null || builtin :; ");
    }
    if (status == SWX_OK && restore->unreassert) {
        status = add(out, "builtin unset 'PROMPT_COMMAND[7734]' 2>/dev/null || builtin :; ");
    }
    if (status == SWX_OK && restore->readline) {
        status = add(out, "builtin set +o emacs +o vi; ");
    }
    if (status == SWX_OK) {
        status = !restore->silent ? swx_shelltext_prompts(out, marks)
                                  : add(out, "builtin declare -g +ilux PS0='' PS1='' PS2='' || builtin :");
    }
    if (status == SWX_OK && restore->guard) { /* whoever sets them and wherever stderr goes later */
        status =
            add(out,
                "; builtin declare -ga 'PROMPT_COMMAND[7733]=%sbuiltin printf '\\''\\033]7733;%%s;%d;%%s\\007'\\'' %s "
                "\"$?\" >&0; builtin declare -g +ilux '\\''PS0='\\'' '\\''PS1='\\'' '\\''PS2='\\''%s' || builtin :",
                OPEN(restore->brace_may_be_alias), SWX_MARK_GUARD, marks->nonce, CLOSE(restore->brace_may_be_alias));
    }
    if (status == SWX_OK && restore->reassert) {
        status = add(out, "; ");
        status = status == SWX_OK ? swx_shelltext_reassert(out, marks, restore->brace_may_be_alias) : status;
    }
    if (status == SWX_OK && restore->last_size && restore->last_size <= SWX_LAST_MAX &&
        is_quoted_word(restore->last, restore->last_size)) {
        status = add(out, "; builtin : ");
        status = status == SWX_OK ? add_word(out, restore->last, restore->last_size, out->size - held) : status;
    }
    if (status == SWX_OK) { /* on a line of its own where that one may be full */
        status = add(out, restore->last_size > LINE_ROOM ? "; \\\n" : "; ");
    }
    return status == SWX_OK ? add_status(out, restore) : status;
}
