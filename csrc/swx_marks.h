/* swx_marks.h: the marks by which a command's start, end and exit code are found in a terminal's byte stream.
 *
 * A mark is an invisible OSC sequence that carries a random number, from getentropy, in digits to the base of 32:
 *
 *      ESC ] 7733 ; NONCE ; KIND [ ; FIELD ]... BEL    sixteen digits
 *      ESC ] 7733 ; START BEL                          of kind START: six others
 *
 * The marks are short, because bash spends hundreds of instructions on each character of a prompt.  The last field of a
 * PROMPT mark is PS0 as it stands in the shell, which tells whether that was changed, and whose digits make 22 with the
 * nonce's (110 bits): without them a mark leads to a question at most.  A START mark decides no end: its digits only
 * tell it from other output.
 *
 * Digits, capital letters and control bytes survive `stty olcuc`.  The texts for the shell are unexpanded (`\e`, `$?`),
 * so that printing the variables that hold them shows nothing that matches; only what the shell itself expands does. Of
 * a mark with a wrong nonce nothing is taken: it is ordinary output.
 *
 * The recogniser works on any chunking.  It holds back at most SWX_MARK_MAX bytes that may become a mark.
 * Nothing here allocates or fails, but for drawing the nonce.
 */
#ifndef SWX_MARKS_H
#define SWX_MARKS_H

#include "swx.h"

enum {
    SWX_NONCE_DIGITS = 16,
    SWX_START_DIGITS = 6,
    SWX_START_HEAD = 2 + 5 + SWX_START_DIGITS,
    SWX_MARKS_HEAD = 2 + 5 + SWX_NONCE_DIGITS + 1, /* ESC ] 7733; NONCE ; */
    SWX_MARK_MAX = 400,                            /* a longer "mark" is ordinary output */
    SWX_MARKS_TEXT = 160                           /* room for the longest text for the shell */
};

typedef enum {
    SWX_MARK_START = 0,  /* PS0: a command was read and begins; what came before is not its output */
    SWX_MARK_PROMPT = 1, /* PS1: fields exit code, command number, job count, the length of PS1, PS0 itself */
    SWX_MARK_GUARD = 2,  /* printed by PROMPT_COMMAND when prompts cannot be seen: field exit code */
    SWX_MARK_REPORT = 3, /* answer to a question: field exit code */
    SWX_MARK_VALUE = 4,  /* separates the parts of that answer */
    SWX_MARK_END = 5     /* ends that answer: field 1, or 0 where stderr is no terminal */
} swx_mark_kind;

typedef struct {
    swx_mark_kind kind;
    int code;          /* 0-255, -1 when the shell did not expand it */
    uint64_t number;   /* bash's `\#` */
    uint32_t jobs;     /* bash's `\j` */
    bool input_named;  /* PROMPT, from elsewhere: the shell's input is a terminal, by a name other than /dev/tty */
    bool ps0_kept;     /* PS0 is what the shell was given */
    bool ps1_kept;     /* PS1 has the length of that */
    bool no_stderr;    /* END: the shell's stderr is no terminal */
    bool fixed_prompt; /* END: PS1 is readonly */
} swx_mark;

typedef struct {
    char nonce[SWX_NONCE_DIGITS + 1], start[SWX_START_DIGITS + 1];
    char ps0[SWX_MARKS_TEXT], ps1[SWX_MARKS_TEXT]; /* the texts for the shell, to be put between single quotes */
    uint8_t head[SWX_MARKS_HEAD];                  /* the bytes every mark of this nonce begins with */
    uint8_t start_head[SWX_START_HEAD];            /* a START mark, but for its BEL */
    uint8_t held[SWX_MARK_MAX];                    /* the beginning of what may be a mark */
    size_t held_size;
    size_t released; /* leading bytes of `held` that were given out as plain and wait to be forgotten */
} swx_marks;

/* Draws a nonce.  elsewhere: prompts also name the shell's input, which is not seen from here.  SWX_ESYS (getentropy).
 * Forgets what was held back. */
swx_status swx_marks_init(swx_marks *marks, bool elsewhere, swx_error *err);

typedef enum {
    SWX_MARKS_MORE,  /* all input was taken */
    SWX_MARKS_PLAIN, /* plain/plain_size are output; they point into the input or into the marks, until the next call */
    SWX_MARKS_MARK   /* *mark is filled */
} swx_marks_event;

/* Takes bytes from bytes and size (both are advanced) until there is something to say. */
swx_marks_event swx_marks_next(swx_marks *marks, const uint8_t **bytes, size_t *size, const uint8_t **plain,
                               size_t *plain_size, swx_mark *mark);

#endif
