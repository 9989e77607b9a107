/* swx_pty.h: a pseudo-terminal pair from openpty(3), and what can be done to it from the master side.
 *
 * The slave is open here as well while something is done with the terminal: it answers whether typed input was read
 * (poll on it flushes what is under way).  A terminal at rest does without it (swx_pty_park).  The kernel keeps modes,
 * size and unread input as long as the master is open; when nobody at all has the slave open, the master is hung up:
 * poll says so for ever, and read fails with EIO once all that was written has been read.  Opening it ends that.
 *
 * The terminal of a carrier is a pipe with a screen size.  It is raw from the start, nothing can be learned from it
 * about the shell's own terminal, and nothing done to it reaches that one, but for its size and for what is typed.
 * Both descriptors are close-on-exec from the start; the master is non-blocking.  Not thread-safe; the owner locks.
 */
#ifndef SWX_PTY_H
#define SWX_PTY_H

#include <sys/types.h>
#include <termios.h>

#include "swx.h"

typedef struct {
    int master;              /* -1 when closed */
    int slave;               /* -1 when closed, or at rest */
    char path[64];           /* of the slave, for the child to open */
    bool carrier;            /* the program behind it carries another terminal */
    struct termios baseline; /* the modes that commands start with */
    struct termios plain;    /* the same, less what would show or change what is typed */
    bool typing;             /* the terminal has the plain ones, and commands start with others */
    struct termios cooked;   /* the modes from before swx_pty_set_raw */
} swx_pty;

/* Opens a pair with a screen of rows x columns, canonical mode, signals on, no echo, no output post-processing
 * (bytes arrive as the programs wrote them); raw for a carrier.  SWX_ESYS names the call that failed. */
swx_status swx_pty_open(swx_pty *pty, bool carrier, unsigned rows, unsigned columns, swx_error *err);

/* Closes what is open; legal twice and on a zeroed pty whose descriptors are -1. */
void swx_pty_close(swx_pty *pty);

/* Closes the slave alone.  Until it is open again input does not count as read, nor is it forgotten.  False: it stays
 * open, because a program has asked for the terminal alone (TIOCEXCL) and nobody could open it again. */
bool swx_pty_park(swx_pty *pty);

/* Opens it again, if it is closed: 2 us.  SWX_ESYS names the call that failed (with EMFILE or ENFILE: for want of
 * descriptors), and nothing has changed then. */
swx_status swx_pty_unpark(swx_pty *pty, swx_error *err);

/* To be called when a command has ended, before anything is typed.  `keep` makes the terminal's modes the new baseline
 * (the user asked with stty), else what the command has left is forgotten (a program died without restoring them).  The
 * terminal gets the plain modes, in which nothing that is typed is shown: an echo has no place among the output,
 * because the kernel wakes the reader of a line before it has written the line's echo.  Returns whether output is
 * post-processed now ("\n" arrives as "\r\n").  Of a carrier: nothing is done, false. */
bool swx_pty_apply_modes(swx_pty *pty, bool keep);

/* Before a command is typed.  False: as any line.  True: the terminal has the plain modes, and the command is to get
 * the baseline.  Its last line ends with SWX_QUOTED_NEWLINE then, which the kernel keeps from the reader; after
 * swx_pty_show, an end of input (the key in baseline.c_cc[VEOF]), which no mode echoes, passes it on. So the command
 * finds its modes, and nobody a trace of what was typed.  Costs no system call unless the modes differ. */
bool swx_pty_hide(swx_pty *pty);
void swx_pty_show(swx_pty *pty);
#define SWX_QUOTED_NEWLINE "\026\n"

/* Raw: every byte that is typed arrives as it is, in lines of any length.  Not raw: as it was before
 * (that is the baseline).  Not to be asked of a carrier. */
void swx_pty_set_raw(swx_pty *pty, bool raw);

/* Sends SIGINT to the foreground process group as the terminal itself would, without a permission check on its members.
 * Of a carrier it would be the carrier that gets it. */
void swx_pty_interrupt(const swx_pty *pty);

/* The foreground process group, or -1; -1 of a carrier. */
pid_t swx_pty_foreground(const swx_pty *pty);

/* Whether the terminal is in canonical mode now (a program that asks the terminal questions switches it off).  Of a
 * carrier: true, the mode that is safe to believe, because answers to a canonical terminal would become commands. */
bool swx_pty_is_canonical(const swx_pty *pty);

/* Whether everything typed so far was read by the other side (of a carrier: by the carrier, which is on its way then).
 */
bool swx_pty_input_consumed(const swx_pty *pty);

/* The key that ends the input of who reads lines now: ^D, unless `stty eof` says another. */
uint8_t swx_pty_end_of_input(const swx_pty *pty);

/* Drops what was typed and not read, half a line included.  Of a carrier: only what the carrier has not read. */
void swx_pty_forget_input(const swx_pty *pty);

swx_status swx_pty_resize(const swx_pty *pty, unsigned rows, unsigned columns, swx_error *err);

#endif
