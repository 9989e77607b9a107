/* swx_command.h: is this text a complete bash command, and how does it get to a shell that reads a terminal?
 *
 *   text --- swx_command_scan ---> verdict, flags --- swx_command_delivery ---> way --- swx_command_encode ---> bytes
 *
 * No process is started for this.  The scan is conservative: whatever swx_grammar.h does not prove is SWX_UNSURE, and
 * the caller asks `bash -n`.  It assumes bash's default parsing: no aliases, no posix mode, no extglob, and a locale in
 * which ASCII bytes are never part of a longer character (UTF-8, ISO 8859, C; not Shift-JIS, GBK or Big5).
 *
 * Time is linear in the text, and the scan allocates nothing.  Everything here is a pure function of its arguments and
 * may be called from any thread.
 */
#ifndef SWX_COMMAND_H
#define SWX_COMMAND_H

#include "swx.h"
#include "swx_buf.h"

typedef enum {
    SWX_EMPTY,    /* blanks, newlines and comments only: nothing would run */
    SWX_COMPLETE, /* `bash -n` accepts it without a warning, and it needs no further line */
    SWX_UNSURE    /* wrong, incomplete, or outside of what is proved: ask bash */
} swx_verdict;

/* Facts about the text, each independent of the verdict.  A "mention" is a maximal run of letters, digits and
 * underscores anywhere in the text, in quotes and comments too: too many rather than too few. */
enum {
    SWX_SCAN_MULTILINE = 1 << 0,     /* the body (see swx_scan) holds a newline: more than one line would be typed */
    SWX_SCAN_CONTROL = 1 << 1,       /* a byte below 0x20 other than tab and newline, or 0x7f */
    SWX_SCAN_NUL = 1 << 2,           /* a NUL byte: no shell can be given this text */
    SWX_SCAN_LONG_LINE = 1 << 3,     /* a line of the body exceeds SWX_LINE_MAX with its newline */
    SWX_SCAN_BACKSLASH_END = 1 << 4, /* UNSURE, and the body ends in an odd number of backslashes */
    SWX_SCAN_LINE_END = 1 << 5,      /* with BACKSLASH_END: that is in a command's line, and in no here-document */
    SWX_SCAN_BACKGROUND = 1 << 6,    /* runs something with `&` (when UNSURE: holds any `&`) */
    SWX_SCAN_PARSE_STATE = 1 << 7,   /* mentions what changes how later lines are parsed (alias, shopt, eval, source and
                                        their like), or runs `.`: the text may have to be parsed line by line */
    SWX_SCAN_EXEC = 1 << 8,          /* mentions exec */
    SWX_SCAN_STTY = 1 << 9,          /* mentions stty, reset, tput */
    SWX_SCAN_PROMPT = 1 << 10,       /* mentions a prompt's variable, or what sets one (activate, conda, ...) */
    SWX_SCAN_CHLD = 1 << 11,         /* mentions CHLD, SIGCHLD: may trap it */
    SWX_SCAN_JOBS = 1 << 12,         /* mentions jobs, wait, fg, bg, disown: may print job lines itself, or end a job
                                        without one */
    SWX_SCAN_UNKNOWN = 1 << 13, /* may read or wait in the shell itself: mentions read, wait and their like, or runs
                                   what may be a function or an alias; or UNSURE */
    SWX_SCAN_EDITING = 1 << 14  /* mentions set together with emacs or vi: may turn readline on; never put it into
                                   an eval (bash 5.2 crashes there) when another way is open */
};

/* A canonical terminal cuts longer lines without a word (Linux: N_TTY_BUF_SIZE 4096). Bytes, newline included. */
#define SWX_LINE_MAX 4095

/* Bash reads that many bytes of a line at a time, and runs traps in between. */
#define SWX_SHELL_READ 1024

/* The body is the text without leading blanks and newlines and without trailing newlines and blank lines.
 * (Blanks at the end of its last line stay, and so does a newline after a backslash: both can matter.  So do blank
 * lines where the text holds `<<`: a here-document's delimiter may be blank.) */
typedef struct {
    swx_verdict verdict;
    unsigned flags;
    size_t body_start; /* offset of the body in the text */
    size_t body_size;  /* its bytes, no newline at the end */
} swx_scan;

/* Never fails.  text may be NULL when size is 0. */
void swx_command_scan(const uint8_t *text, size_t size, swx_scan *out);

/* Effects that a command may have on the shell and its terminal; further bits beside SWX_SCAN_... */
typedef enum {
    SWX_HINT_SETTLE = 1 << 16, /* the command may send the shell's output through a helper process; elsewhere: it
                                  does, as far as its text tells */
    SWX_HINT_PROMPT = 1 << 17, /* the command assigns to PS1: the next prompt may be a copy of an old mark */
    /* the command may change prompts, itself or, elsewhere, by what it reads and evaluates */
    SWX_HINT_SOURCE = 1 << 18,
    SWX_HINT_STDERR = 1 << 19, /* the command may send the shell's standard error elsewhere, where its prompts go */
    SWX_HINT_HIDES = 1 << 20,  /* the command speaks of prompts or sends standard error elsewhere, and runs nothing that
                                  may read or wait in the shell itself (SWX_SCAN_UNKNOWN): one that is silent after it
                                  is at its prompt; where the kernel does not tell */
    SWX_HINT_BRACE = 1 << 21,  /* the command may make an alias of a brace */
    SWX_HINT_LAST = 1 << 22    /* the command assigns to PS1 and may take the shell's input away: its prompt would be
                                  the last thing that is seen of the shell, which can be asked nothing any more */
} swx_hint;

/* Both kinds of bits of a text, without SWX_HINT_BRACE.  elsewhere: the shell is, see swx_transport.h. */
unsigned swx_command_hints(const swx_scan *scan, const uint8_t *text, size_t size, bool elsewhere);

/* How a text is typed, the most faithful way first. */
typedef enum {
    SWX_DELIVERY_NONE,  /* nothing to type: the text runs nothing */
    SWX_DELIVERY_PLAIN, /* the body as one line */
    SWX_DELIVERY_GROUP, /* `{`, the body, `}` on lines of their own: parsed whole before anything of it runs */
    /* the same bytes as GROUP, typed while the terminal is in raw mode: lines of any length, control bytes */
    SWX_DELIVERY_RAW,
    SWX_DELIVERY_EVAL, /* eval $'...' in lines that a terminal can carry: any bytes, any length; each line is parsed
                     after the one before has run, as in a script */
    /* EVAL of what GROUP types: parsed whole, and what ends one of its commands ends all of it */
    SWX_DELIVERY_TOGETHER,
    SWX_DELIVERY_DOCUMENT, /* EVAL of a text that ends in a backslash inside of a here-document */
    /* as EVAL and TOGETHER, but source <(builtin printf %s $'...'): for a shell whose eval is disabled */
    SWX_DELIVERY_SOURCE,
    SWX_DELIVERY_SOURCE_TOGETHER
} swx_delivery;

/* Effects of a text on the way that later texts can be typed.  GROUP: it may trap SIGCHLD, or it defines an alias and
 * holds a brace (then BRACE too).  Where such a trap runs while bash 5.2 reads from the terminal, bash takes a reserved
 * word for a command, and forgets what it has read of a word or a line of SWX_SHELL_READ.  EVAL: it disables eval. */
typedef enum { SWX_SPOILS_GROUP = 1, SWX_SPOILS_EVAL = 2, SWX_SPOILS_BRACE = 4 } swx_spoils;
unsigned swx_command_spoils(const swx_scan *scan, const uint8_t *text, size_t size);

/* Chooses how to type a text without a NUL byte.
 *
 * accepted: `bash -n` accepted the text without a warning (in particular without "here-document delimited by
 * end-of-file"); only asked for when the verdict is SWX_UNSURE.  spoils: the effects of the texts so far.
 * elsewhere: the terminal is, and is never in raw mode.
 *
 *   EMPTY                                              -> NONE
 *   a final backslash in a here-document, not accepted -> DOCUMENT
 *   a final backslash, or neither COMPLETE nor accepted -> EVAL
 *   several lines and PARSE_STATE (and not EDITING)    -> EVAL
 *   control bytes or a long line                       -> RAW, elsewhere TOGETHER
 *   several lines                                      -> GROUP
 *   one line                                           -> PLAIN
 *
 * Where GROUP is spoilt, it, RAW and a PLAIN body of SWX_SHELL_READ become TOGETHER unless EDITING.  TOGETHER is EVAL
 * where BRACE is spoilt, for one line and with EDITING.  (One short line stays PLAIN, because an eval takes its
 * PIPESTATUS away.)  Where EVAL is spoilt, TOGETHER becomes SOURCE_TOGETHER, and all else that is made of it SOURCE. */
swx_delivery swx_command_delivery(const swx_scan *scan, bool accepted, unsigned spoils, bool elsewhere);

/* Appends the exact bytes to type, final newline included, to out.  PLAIN, GROUP and RAW type the body, the others the
 * whole text.
 *
 * EVAL types `\builtin eval $'...'`.  Printable ASCII other than ' and \ stands for itself, newline and tab are \n and
 * \t, a backslash is two, all other bytes are three octal digits: always three, so that a following digit cannot join,
 * and octal gives the byte itself in every locale.  A text that begins with `-` gets `builtin eval -- `.  One that ends
 * in an odd number of backslashes gets another one, DOCUMENT a newline: at its very end a backslash that quotes nothing
 * would make bash go on reading at the terminal.
 *
 * No byte outside of 0x20..0x7e and newline is typed, and a line with its newline is shorter than SWX_SHELL_READ: a
 * trap on SIGCHLD that runs while bash reads a line, or a word, makes it forget what it has of that.  So a longer text
 * is a word a line.  eval joins words by a space, and an eval in the eval takes it away: it evaluates $'...'${-:0:0
 * }$'...', where the space is in an expansion to nothing (`$-` is always set).  A longer text for SOURCE, which is one
 * word, is sourced from a here-document, which bash reads line by line.
 *
 * SWX_OK; SWX_EINVAL: a NUL byte, or way is NONE; SWX_ELIMIT: it exceeds out->limit; SWX_ENOMEM.  After an error out
 * may hold a part of it. */
swx_status swx_command_encode(swx_delivery way, const uint8_t *text, size_t size, swx_buf *out);

#endif
