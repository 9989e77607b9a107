/* swx_transport.h: how a session reaches its shell: by a terminal of this machine, or by a stream of bytes that a
 * client carries to and from a terminal elsewhere (README.md, "A shell in another place").
 *
 * The session's files ask the transport what it can do, and never which of the two it is.  Another way to a shell, such
 * as the descriptor of a WebSocket, is another of these tables.
 */
#ifndef SWX_TRANSPORT_H
#define SWX_TRANSPORT_H

#include "swx_session.h"

typedef struct {
    bool has_terminal;  /* the shell's terminal is ours: its modes are seen and set, and input that was not read too */
    bool has_processes; /* the shell and what it starts are processes here: /proc tells of them, signals reach them */

    /* In nanoseconds; a stream's bytes may be on their way any time. */
    int64_t silence;  /* without output, after which no more is on its way */
    int64_t delivery; /* an interrupt waits so long for a command to begin */
    int64_t fork;     /* and then so long for a shell that may be forking unseen; 0: its forks are seen */
    int64_t unread;   /* after a prompt that may be an earlier command's, for this one's START mark */
    int64_t farewell; /* for an idle shell to end at the end of its input; 0: it is hung up */

    /* Drops half a line that the shell at its prompt would take for the beginning of the next command.  Of a stream:
     * one that was typed to a program.  False: memory is short, and nothing was typed. */
    bool (*drop_input)(swx_session *s);
    /* Interrupts what runs, as ^C does.  group: what is in the foreground, where that is known. */
    void (*interrupt)(swx_session *s, swx_op *op, pid_t group, int64_t now);
} swx_transport;

extern const swx_transport swx_transport_pty, swx_transport_stream;

#endif
