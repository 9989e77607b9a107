/* swx_pty.h: a pseudo-terminal pair from openpty(3): modes, size, signals, input.
 *
 * The slave is open here too while the session works: a poll of it tells whether typed input was read, and flushes
 * input that is under way.  A parked terminal does without it (README.md).  When no process has it open, the master is
 * hung up: read fails with EIO once all output was read.
 *
 * The terminal of a client, which carries another one, is a pipe with a screen size.  It is raw from the start, nothing
 * can be learned from it about the shell's own terminal, and nothing done to it reaches that one, but for its size and
 * for what is typed. Both descriptors are close-on-exec from the start; the master is non-blocking.  Not thread-safe;
 * the owner locks.
 */
#ifndef SWX_PTY_H
#define SWX_PTY_H

#include <sys/types.h>
#include <termios.h>

#include "swx.h"

typedef struct {
    int master;              /* -1 when closed */
    int slave;               /* -1 when closed, or parked */
    char path[64];           /* of the slave, for the child to open */
    bool client;             /* the program on it carries another terminal */
    struct termios baseline; /* the modes that commands start with */
    struct termios plain;    /* the same, less what would show or change what is typed */
    bool typing;             /* the terminal has the plain ones, and commands start with others */
    struct termios cooked;   /* the modes from before swx_pty_set_raw */
} swx_pty;

/* Opens a pair with a screen of rows x columns, canonical mode, signals on, no echo, no output post-processing
 * (bytes arrive as the programs wrote them); raw for a client.  SWX_ESYS names the call that failed. */
swx_status swx_pty_open(swx_pty *pty, bool client, unsigned rows, unsigned columns, swx_error *err);

/* Closes what is open; legal twice and on a zeroed pty whose descriptors are -1. */
void swx_pty_close(swx_pty *pty);

/* Closes the slave alone.  Until it is open again input counts as unread and cannot be dropped.  False: the slave stays
 * open, because a program has asked for exclusive use of the terminal (TIOCEXCL), which would refuse the next open. */
bool swx_pty_park(swx_pty *pty);

/* Opens the slave if it is closed (2 us).  SWX_ESYS names the call that failed (EMFILE, ENFILE: no descriptors are
 * left), and nothing has changed. */
swx_status swx_pty_unpark(swx_pty *pty, swx_error *err);

/* Sets the plain modes after a command, before anything is typed.  keep: the modes that the command left become the new
 * baseline (the user has run stty); else they are forgotten (a program died without restoring them).  In the plain
 * modes typed text has no echo, because the kernel wakes the reader of a line before it has written its echo, which
 * would end up in the output.  Returns whether output was post-processed ("\n" arrived as "\r\n").  Of a client:
 * nothing is done, false. */
bool swx_pty_apply_modes(swx_pty *pty, bool keep);

/* Prepares the terminal for a command.  False: the command is typed like any line.  True: the terminal has the plain
 * modes, and the command must run in the baseline.  Then its last line ends with SWX_QUOTED_NEWLINE, which the kernel
 * keeps from the reader, swx_pty_show sets the baseline, and an end of input (the key in baseline.c_cc[VEOF]), which no
 * mode echoes, passes the line on.  So no program sees an echo of the command.  Costs no system call unless the modes
 * differ. */
bool swx_pty_hide(swx_pty *pty);
void swx_pty_show(swx_pty *pty);
#define SWX_QUOTED_NEWLINE "\026\n"

/* raw: every typed byte arrives as it is, in lines of any length.  Not raw: restores the modes from before.  Not for a
 * client. */
void swx_pty_set_raw(swx_pty *pty, bool raw);

/* Sends SIGINT to the foreground process group as the terminal itself would, without a check of permissions.  Of a
 * client: the client would get it. */
void swx_pty_interrupt(const swx_pty *pty);

/* Lets the terminal print again what ^S (IXON) or a program (tcflow) has stopped.  Of a client: the client's. */
void swx_pty_start_output(const swx_pty *pty);

/* The foreground process group, or -1; -1 of a client. */
pid_t swx_pty_foreground(const swx_pty *pty);

/* Whether the terminal is in canonical mode now (a program that asks the terminal questions switches it off).  Of a
 * client: true, the mode that is safe to believe, because answers to a canonical terminal would become commands. */
bool swx_pty_is_canonical(const swx_pty *pty);

/* Whether the other side has read everything typed so far (of a client: the client, which passes it on). */
bool swx_pty_input_consumed(const swx_pty *pty);

/* The key that ends the input of a reader of lines: ^D, unless `stty eof` has set another. */
uint8_t swx_pty_end_of_input(const swx_pty *pty);

/* Drops unread input, half a line included.  Of a client: only input that the client has not read. */
void swx_pty_forget_input(const swx_pty *pty);

#endif
