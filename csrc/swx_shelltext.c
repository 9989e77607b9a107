#include "swx_shelltext.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { LINE_ROOM = 1024, PIECE = 4000, MODES_MAX = 400 };

#define STTY "builtin command -p stty " /* the user may have changed PATH */

/* The modes of swx_pty_apply_modes: input arrives as lines, and no letter is a key.  Echo is off too, because it could
 * not be hidden here while a command is typed.  Modes that only some implementations know come last, in a call of their
 * own. */
#define KEPT_LINES "icanon isig icrnl -igncr -inlcr -istrip -echo -echonl noflsh"
#define KEPT_KEYS "intr '^C' quit '^\\' erase '^?' kill '^U' eof '^D' start '^Q' stop '^S' susp '^Z'"
#define MORE_KEPT "iexten -parmrk -inpck -iuclc lnext '^V' werase '^W' rprnt '^R' eol '^-' eol2 '^-'"

/* Each line takes itself alone out of the history: PROMPT_COMMAND may have changed that since the line before. */
#define FORGET "builtin test -o history -a -z \"${HISTIGNORE-}\" 2>&- && builtin history -d -1 2>&- || builtin :; "

/* A text that is being built; after an error nothing more is added. */
typedef struct {
    swx_buf *out;
    swx_status status;
} text;

static void add_bytes(text *to, const void *bytes, size_t size)
{
    to->status = to->status == SWX_OK ? swx_buf_append(to->out, bytes, size) : to->status;
}

/* printf; our texts are short, so a fixed line is enough. */
__attribute__((format(printf, 2, 3))) static void add(text *to, const char *format, ...)
{
    char line[LINE_ROOM];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    if (size < 0 || size >= LINE_ROOM) {
        to->status = SWX_ELIMIT;
    } else {
        add_bytes(to, line, (size_t)size);
    }
}

/* Sets our prompts, and keeps them from children. */
static void add_prompts(text *to, const swx_marks *marks)
{
    /* Quoted as a whole: under `set -k` an assignment is no argument. */
    add(to, "builtin declare -g +ilux 'PS0=%s' 'PS1=%s' 'PS2=' || builtin :", marks->ps0, marks->ps1);
}

/* A group of which nothing is shown; where its first word may be an alias, simple commands that are each without stdout
 * and stderr. */
#define OPEN(bare) ((bare) ? "" : "{ ")
#define CLOSE(bare) ((bare) ? SWX_BARE_CLOSE : SWX_GROUP_CLOSE)

/* Adds an element of PROMPT_COMMAND that sets our prompts before each prompt, after the user's own elements. */
static void add_reassert(text *to, const swx_marks *marks, bool bare)
{
    add(to,
        "builtin declare -ga 'PROMPT_COMMAND[7734]=%sbuiltin declare -g +ilux '\\''PS0=%s'\\'' '\\''PS1=%s'\\'' "
        "'\\''PS2='\\''%s' || builtin :",
        OPEN(bare), marks->ps0, marks->ps1, CLOSE(bare));
}

/* The element runs before the ones that mark or show the end of a command. */
static void add_kept_modes(text *to, bool bare)
{
    char quoted[LINE_ROOM], *at = quoted;
    const char *grouped = STTY KEPT_LINES " " KEPT_KEYS " || builtin :; " STTY MORE_KEPT SWX_GROUP_CLOSE;
    const char *single = STTY KEPT_LINES " " KEPT_KEYS SWX_BARE_CLOSE "; " STTY MORE_KEPT SWX_BARE_CLOSE;
    for (const char *from = bare ? single : grouped; *from; from++) {
        at += *from == '\'' ? sprintf(at, "'\\''") : sprintf(at, "%c", *from);
    }
    add(to, "builtin declare -ga 'PROMPT_COMMAND[7732]=%s%s' || builtin :; ", OPEN(bare), quoted);
}

swx_status swx_shelltext_startup(swx_buf *out, const swx_marks *marks, const swx_startup *startup)
{
    text to = { out, SWX_OK };
    add(&to, "{\n" FORGET "builtin set +H; builtin export -n PS0 PS1 PS2 HISTFILE; "
             "((BASH_VERSINFO[0] < 5)) || HISTFILE=/dev/null; builtin unset MAILCHECK; ");
    if (startup->elsewhere) {
        add(&to, "{ " STTY "sane -echo -opost noflsh || builtin :; } 2>/dev/null");
    }
    add(&to, "\n");
    add_bytes(&to, startup->script, startup->size);
    add(&to, startup->elsewhere ? "\nbuiltin set +o emacs +o vi\n" : "\n"); /* readline could not be noticed there */
    add_prompts(&to, marks);
    if (startup->reassert) {
        add(&to, "\n");
        add_reassert(&to, marks, false);
    }
    add(&to, "\nbuiltin :\n}\n"); /* for `$_` */
    return to.status;
}

bool swx_shelltext_is_modes(const uint8_t *word, size_t size)
{
    bool any = false;
    for (size_t i = 0; i < size; i++) {
        any = any || word[i] == ':';
        if (word[i] >= 0x80 || !(isalnum(word[i]) || word[i] == ':' || word[i] == '=')) {
            return false;
        }
    }
    return any && size <= MODES_MAX;
}

static void add_modes_question(text *to, swx_modes_question question, const char *answer)
{
    if (question == SWX_MODES_FIRST) {
        add(to,
            "case ${#PROMPT_COMMAND[@]}:$(builtin declare -f; builtin alias; builtin trap) in "
            "1:*PS[01]*|1:*PROMPT_*) builtin echo 1;; 1:*) builtin echo 0;; *) builtin echo 1;; esac >%s "
            "2>/dev/null; ",
            answer);
    } else if (question == SWX_MODES_KEEP) {
        add(to, STTY KEPT_LINES " " KEPT_KEYS " -opost >%s 2>/dev/null || builtin :; ", answer);
        add(to, STTY MORE_KEPT " >%s 2>/dev/null || builtin :; ", answer);
    }
    add(to, STTY "-g >%s 2>/dev/null || builtin :; ", answer);
}

swx_status swx_shelltext_question(swx_buf *out, const swx_marks *marks, swx_modes_question question, const char *answer)
{
    const char *nonce = marks->nonce;
    text to = { out, SWX_OK };
    char end[64];
    /* The nonce is an argument of printf, so that the line itself, if it is ever echoed, holds no mark. */
    add(&to,
        SWX_QUESTION "\\033]7733;%%s;%d;%%s\\007%%s %%q\\033]7733;%%s;%d\\007%%s\\033]7733;%%s;%d\\007%%s"
                     "\\033]7733;%%s;%d\\007%%s\\033]7733;%%s;%d\\007%s' %s \"$?\" "
                     "\"${PIPESTATUS[*]@A}${SHELLOPTS##*pipefail*}\"",
        SWX_MARK_REPORT, SWX_MARK_VALUE, SWX_MARK_VALUE, SWX_MARK_VALUE, SWX_MARK_VALUE,
        question == SWX_MODES_SKIP ? "" : "\\n", nonce);
    /* PS1 may be unset, which is an error under `set -u`. */
    add(&to, " \"$_\" %s \"${PS1+${PS1@P}}\" %s \"${PS0+${PS0@P}}\" %s \"${PS2+${PS2@P}}\" %s >%s; " FORGET, nonce,
        nonce, nonce, nonce, answer);
    if (question != SWX_MODES_SKIP) {
        add_modes_question(&to, question, answer);
    }
    snprintf(end, sizeof(end), "builtin printf '\\033]7733;%%s;%d;%%s\\007' %s", SWX_MARK_END, nonce);
    add(&to, "builtin test -t 2 || builtin [ -t 2 ] && %s \"1${PS1+${PS1@a}}\" >%s || %s 0 >%s\n", end, answer, end,
        answer);
    return to.status;
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
static void add_status(text *to, const swx_restore *restore)
{
    const uint8_t *at = restore->pipestatus, *end = restore->pipestatus_size ? at + restore->pipestatus_size : at;
    const bool pipefail = restore->pipestatus_size > 1 && end[-2] == ')';
    int stages = 0, last = -1;
    for (int code; (code = next_code(&at, end)) >= 0; stages++) {
        last = stages && pipefail && !code ? last : code;
    }
    bool usable = stages <= SWX_PIPE_MAX && last == restore->code;
    if (!usable) {
        add(to, "(builtin exit %d)", restore->code);
    }
    at = restore->pipestatus;
    for (int i = 0; usable && i < stages; i++) {
        add(to, "%s(builtin exit %d)", i ? "|" : "", next_code(&at, end));
    }
    add(to, restore->code ? " && builtin :\n" : " || builtin :\n");
}

/* Whether the text is one word as `printf %q` writes it.  If another process has written between the marks, it is not,
 * and must not be typed. */
static bool is_quoted_word(const uint8_t *word, size_t size)
{
    bool ansi = size > 2 && word[0] == '$' && word[1] == '\'';
    if (size == 2 && word[0] == '\'' && word[1] == '\'') {
        return true;
    }
    size_t at = ansi ? 2 : 0, end = ansi ? size - 1 : size;
    for (; at < end; at++) {
        if (word[at] < ' ' || word[at] == 0x7f ||
            (ansi ? word[at] == '\'' : strchr(" '\"$`;&|<>()*?[]{}!^,", word[at]) != NULL)) {
            return false;
        }
        at += word[at] == '\\';
    }
    return at == end && (!ansi || word[end] == '\'');
}

/* The offset after the character at `at` in such a word; a backslash and the character it quotes count as one. */
static size_t behind_character(const uint8_t *word, size_t size, size_t at, bool ansi)
{
    if (word[at] != '\\') {
        for (at++; at < size && (word[at] & 0xc0) == 0x80; at++) { /* the rest of a character of UTF-8 */
        }
        return at;
    }
    size_t digits = 0;
    while (ansi && digits < 3 && at + 1 + digits < size && word[at + 1 + digits] >= '0' &&
           word[at + 1 + digits] <= '7') {
        digits++;
    }
    return at + 1 + (digits ? digits : 1);
}

/* Appends a word of `printf %q` to a line that holds `used` bytes; no line becomes longer than a terminal takes. */
static void add_word(text *to, const uint8_t *word, size_t size, size_t used)
{
    bool ansi = size > 2 && word[0] == '$' && word[1] == '\'';
    size_t start = 0, at = ansi ? 2 : 0;
    while (at < size) {
        size_t next = behind_character(word, size, at, ansi);
        if (used + next - start > PIECE) {
            add_bytes(to, word + start, at - start);
            add(to, ansi ? "'\\\n$'" : "\\\n");
            start = at;
            used = ansi ? 2 : 0;
        }
        at = next;
    }
    add_bytes(to, word + start, size - start);
}

swx_status swx_shelltext_restore(swx_buf *out, const swx_marks *marks, const swx_restore *restore)
{
    const bool bare = restore->brace_may_be_alias;
    size_t held = out->size;
    text to = { out, SWX_OK };
    add(&to, FORGET);
    if (restore->prompt_variables) {
        add(&to, "builtin shopt -s promptvars; ");
    }
    if (restore->modes_size && swx_shelltext_is_modes(restore->modes, restore->modes_size)) {
        add(&to, STTY "%.*s 2>/dev/null <&0 || builtin :; ", (int)restore->modes_size, (const char *)restore->modes);
    }
    if (restore->disarm) {
        add(&to, "builtin unset PROMPT_COMMAND; ");
    }
    if (restore->keep_modes) {
        add_kept_modes(&to, bare);
    } else if (restore->unkeep_modes) {
        add(&to, "builtin unset 'PROMPT_COMMAND[7732]' 2>/dev/null || builtin :; ");
    }
    if (restore->unreassert) {
        add(&to, "builtin unset 'PROMPT_COMMAND[7734]' 2>/dev/null || builtin :; ");
    }
    if (restore->readline) {
        add(&to, "builtin set +o emacs +o vi; ");
    }
    if (restore->silent) {
        add(&to, "builtin declare -g +ilux 'PS0=' 'PS1=' 'PS2=' || builtin :");
    } else {
        add_prompts(&to, marks);
    }
    if (restore->guard) { /* whatever sets the prompts, and wherever stderr goes later */
        add(&to,
            "; builtin declare -ga 'PROMPT_COMMAND[7733]=%sbuiltin printf '\\''\\033]7733;%%s;%d;%%s\\007'\\'' %s "
            "\"$?\" >&0; builtin declare -g +ilux '\\''PS0='\\'' '\\''PS1='\\'' '\\''PS2='\\''%s' || builtin :",
            OPEN(bare), SWX_MARK_GUARD, marks->nonce, CLOSE(bare));
    }
    if (restore->reassert) {
        add(&to, "; ");
        add_reassert(&to, marks, bare);
    }
    if (restore->last_size && restore->last_size <= SWX_LAST_MAX && is_quoted_word(restore->last, restore->last_size)) {
        add(&to, "; builtin : ");
        add_word(&to, restore->last, restore->last_size, out->size - held);
    }
    add(&to, restore->last_size > LINE_ROOM ? "; \\\n" : "; "); /* on a line of its own where that one may be full */
    add_status(&to, restore);
    return to.status;
}
