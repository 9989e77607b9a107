/* swx_shelltext.h: the lines that the session itself types to bash, besides the user's commands.
 *
 * They are typed at a prompt, never through readline, in lines under 4,096 bytes without TAB or `!`-history, and stay
 * out of the history.  They expect `builtin`, `printf` and `declare` to be bash's own; where a user has shadowed those,
 * the question is not answered and the session says that it lost synchronisation.
 */
#ifndef SWX_SHELLTEXT_H
#define SWX_SHELLTEXT_H

#include "swx_buf.h"
#include "swx_marks.h"

/* The startup script in a brace group, between what makes the prompts ours alone and what puts them back when the
 * script has changed them.  (Bash would report new mail right before a prompt, in the output of any command.) HISTFILE:
 * `history -a` in somebody's PROMPT_COMMAND complains if it is empty.  Before bash 5, root's `history -w` renames
 * /dev/null.  Elsewhere the first line gives the shell's terminal the modes that a session counts on (lines,
 * signals, no echo, bytes as programs write them, nothing flushed by an interrupt), where there is a stty. */
typedef struct {
    const uint8_t *script;
    size_t size;
    bool elsewhere;
    bool reassert; /* PROMPT_COMMAND puts our prompts back before each, behind whatever the user's own elements do */
} swx_startup;
swx_status swx_shelltext_startup(swx_buf *out, const swx_marks *marks, const swx_startup *startup);

#define SWX_QUESTION "builtin printf '" /* the beginning of a question, by which its echo is found */

/* How our elements of PROMPT_COMMAND and their commands begin and end, wherever the shell shows them; the nonce is
 * in each.  Each is a group whose stdout and stderr are closed, so that neither a DEBUG trap nor `set -x` can show
 * them, or, where a brace may be an alias, bare commands. */
#define SWX_REASSERT "builtin declare -g +ilux 'PS0="
#define SWX_REASSERT_END "'PS2='\n"
#define SWX_REASSERT_TRACED " PS2=\n"
#define SWX_GUARD "builtin printf '\\033]7733;%s;"
#define SWX_GUARD_END "\"$?\" 1>&0\n"
#define SWX_REASSERT_GROUP "{ " SWX_REASSERT
#define SWX_GUARD_GROUP "{ " SWX_GUARD
#define SWX_GROUP_CLOSE " || builtin :; } >&- 2>&-"
#define SWX_BARE_CLOSE " >&- 2>&- || builtin :"
#define SWX_GROUP_END "'PS2='" SWX_GROUP_CLOSE "\n"
#define SWX_BARE_END "'PS2='" SWX_BARE_CLOSE "\n"
#define SWX_REASSERT_BARE "'PS2=' 1>&- 2>&-\n"

#define SWX_ANSWER_INPUT "&0"
#define SWX_ANSWER_TERMINAL "/dev/tty"

/* What a question asks about the terminal of a shell elsewhere. */
typedef enum {
    SWX_MODES_SKIP, /* nothing */
    SWX_MODES_ASK,  /* how it is */
    SWX_MODES_KEEP, /* the user has changed it: what a session counts on is put back first, the rest stays */
    SWX_MODES_FIRST /* how it is; and whether anything there may change the prompts without a hint */
} swx_modes_question;

/* The question: one line of simple commands (a trap on SIGCHLD may keep bash from knowing a reserved word at its
 * beginning, and an alias anywhere), and short: where such a trap waits to be run, bash loses a line that takes it
 * several reads (1,024 bytes each).  The answer is a REPORT mark (exit code), the declaration of PIPESTATUS, a blank,
 * the last argument `$_` in the shell's own quoting, a VALUE mark, the text that the user's prompt printed, a VALUE
 * mark, what PS0 prints, the same for PS2, a VALUE mark, what `set -x` traces of the rest, and an END mark (is stderr
 * the terminal, and the attributes of PS1). All is expanded before anything is run, and goes to the terminal through
 * SWX_ANSWER_INPUT, whatever stdout and stderr are.
 *
 * Where fd 0 was opened for reading alone, or may have been, as by `exec </dev/tty`, the answer goes to
 * SWX_ANSWER_TERMINAL, which a restricted shell could not open.
 *
 * A question about modes adds to the part before the END mark: a newline as the terminal made it before anything was
 * put back; for SWX_MODES_FIRST a line, 0 or 1: PROMPT_COMMAND has elements that are not ours, or functions, aliases or
 * traps speak of prompts; and the modes as `stty -g` prints them, nothing where there is no stty. */
swx_status swx_shelltext_question(swx_buf *out, const swx_marks *marks, swx_modes_question question,
                                  const char *answer);

typedef struct {
    int code;                  /* the exit status to restore */
    const uint8_t *pipestatus; /* as bash declares it: ([0]="0" [1]="1"), a blank right behind it if pipefail is on */
    size_t pipestatus_size;
    const uint8_t *last; /* `$_` in the shell's quoting; size 0: leave it */
    size_t last_size;
    bool prompt_variables; /* switch prompt expansion on again */
    bool readline;         /* switch readline off again */
    bool silent;           /* prompts stay empty, because they would go where stderr goes, into the user's file */
    bool guard;            /* mark the end of commands from PROMPT_COMMAND, because prompts are not seen */
    bool reassert;         /* set PS1 again from PROMPT_COMMAND, because the user's PROMPT_COMMAND sets it each time */
    bool unreassert;       /* take its element out again */
    bool brace_may_be_alias; /* a brace may be an alias: what PROMPT_COMMAND gets does without */
    bool disarm;             /* take that out again: PROMPT_COMMAND is ours alone, and nothing needs it */
    bool keep_modes;         /* have PROMPT_COMMAND put back the modes in which the shell can be typed to */
    bool unkeep_modes;       /* take that out again */
    const uint8_t *modes;    /* what the terminal is to be put back to, as `stty -g` printed it; size 0: leave it */
    size_t modes_size;
} swx_restore;

/* Whether the text can be what `stty -g` prints: one word of letters, digits, colons and equals signs, not too long. */
bool swx_shelltext_is_modes(const uint8_t *text, size_t size);

enum {
    SWX_LAST_MAX = 60 * 1024, /* bytes of `$_` in the shell's quoting; a longer one is not put back */
    SWX_PIPE_MAX = 100        /* stages of a pipeline whose codes are */
};

/* Restores prompts and state after a question, in one line, or several joined by backslashes if `$_` is long.  `$?`,
 * `$_` and PIPESTATUS (of up to SWX_PIPE_MAX stages) are then as the user's command left them. */
swx_status swx_shelltext_restore(swx_buf *out, const swx_marks *marks, const swx_restore *restore);

#endif
