/* swx_session.h: one persistent bash behind a terminal, as a state machine.
 *
 *      STARTING -> IDLE -> RUNNING -> IDLE                     a command and its answer
 *                          RUNNING (no operation waits)        after a timeout, a match or a cancellation: what it
 *                                                              prints from then on belongs to a LINE or an INTERRUPT
 *                                                              that comes before its end, or to nobody
 *      RUNNING -> RESYNC -> IDLE | lost                     the end of a command is in doubt: ask the shell
 *      any -> DEAD                                             the shell ended; its wait status is kept
 *      any -> CLOSING -> CLOSED                                the whole process tree is ended
 *
 * README.md says how a command is known to be finished, what a parked session gives back, and what is different
 * elsewhere.  An operation for which a parked session cannot get its descriptors back ends with SWX_END_SYSTEM, was
 * not typed, and leaves the session as it was.
 *
 * Nothing here waits, starts threads or locks: every call does what can be done now and returns; the owner (a reactor,
 * or a test) calls swx_session_readable/_writable/_ended when the descriptors say so, and swx_session_due at the time
 * that swx_session_deadline names.  Times are nanoseconds of CLOCK_MONOTONIC.  Calls on one session must not overlap;
 * `done` and `news` run inside of these calls and must not call back into the session.
 */
#ifndef SWX_SESSION_H
#define SWX_SESSION_H

#include "swx_buf.h"
#include "swx_child.h"
#include "swx_command.h"
#include "swx_kernel.h"
#include "swx_match.h"

#define SWX_NEVER INT64_MAX

enum {
    SWX_STREAM_LEAST = 1 << 20, /* least bytes of output that a stream holds, whatever the session's limit is */
    SWX_SEARCH_BEHIND = 4 << 20 /* most bytes that an owner's search is behind, except during interrupts */
};

typedef struct swx_session swx_session;
typedef struct swx_op swx_op;

typedef enum {
    SWX_OP_START,     /* type the startup script once the first prompt is there */
    SWX_OP_RUN,       /* a command at the prompt; ends with its exit code */
    SWX_OP_LINE,      /* a line for whatever reads the terminal; ends with a match, or when the shell is back.  Without
                         a byte to type it only waits for the running command, or tells how the last one ended. */
    SWX_OP_INTERRUPT, /* overtakes: end the running command */
    SWX_OP_CLOSE      /* overtakes: end the session and everything it started */
} swx_op_kind;

typedef enum {
    SWX_END_NONE,    /* not ended yet */
    SWX_END_DONE,    /* the shell is at its prompt; code is its exit code */
    SWX_END_MATCHED, /* a pattern of `match` was seen; hit says which; the command may go on.  The output ends where the
                        match begins, however it was cut on its way; what comes behind it begins the output of the
                        next LINE, where it is not searched, but for a command that has ended */
    SWX_END_TIMEOUT, /* the deadline passed; the command may go on */
    SWX_END_QUIET,   /* no output for `quiet`; the command may go on */
    SWX_END_DIED,    /* the shell ended; code is its exit code (128 + signal) */
    SWX_END_LOST,    /* synchronisation could not be proved; the session is of no more use */
    SWX_END_CLOSED,  /* the session was closed before or meanwhile */
    SWX_END_CANCELLED, /* swx_session_cancel */
    SWX_END_MEMORY,    /* out of memory */
    SWX_END_COSTLY,    /* the patterns of `match` take too long on this output (SWX_ELIMIT); the command may go on */
    SWX_END_SYSTEM     /* it could not be typed, or not run: see error, which names the system call where one failed */
} swx_end;

/* An operation.  The caller owns it, fills the first part, zeroes the rest, and keeps it alive and untouched until
 * `done` was called. */
struct swx_op {
    swx_op_kind kind;
    const uint8_t *typed; /* START: script text for inside of a brace group; RUN, LINE: the bytes to type; borrowed */
    size_t typed_size;
    bool held;        /* keeps its place in the queue, and is not begun before swx_session_release */
    bool ahead;       /* RUN: the owner's question for the held operation that is first: it begins before that, and an
                         interrupt is kept for that one */
    bool runs;        /* RUN: something of it has to run, so that the shell's count of commands rises */
    bool raw;         /* RUN: `typed` is a brace group with bytes that only a terminal in raw mode passes on */
    unsigned hints;   /* of SWX_SCAN_... and swx_hint */
    swx_match *match; /* patterns to wait for, or NULL; borrowed, used by the session until done */
    bool searched_by_owner; /* instead: news is called when there is output, see swx_session_take_unsearched */
    int64_t grace; /* RUN with patterns: nanoseconds that it waits for the command's end after the match; see `ended` */
    int64_t deadline; /* SWX_NEVER: none */
    int64_t quiet;    /* nanoseconds without output after which it ends, 0: no such limit */
    int64_t step;     /* INTERRUPT: nanoseconds between attempts; START: time for the script, SWX_NEVER: any */
    int64_t patience; /* START: nanoseconds for the first prompt, a minute at most; 0: a minute */
    unsigned
        tries;   /* INTERRUPT: attempts before the foreground processes are killed.  A program gets one SIGINT in each;
                    if it ends and the shell goes on with another one, as in a loop, that gets one too, at once */
    bool silent; /* INTERRUPT elsewhere: types nothing, and ends with what runs or when it is cancelled.  The
                    owner sends the signal inside: unlike ^C that can be kept from a shell that is about to fork,
                    which would end it */
    bool stream; /* call news when there is more output, and lose none of it: see swx_session_wants_read */
    void (*done)(swx_op *);
    void (*news)(swx_op *); /* may be NULL */
    void *owner;

    swx_end end;
    int code;     /* DONE, DIED; of a shell whose status is lost: -1 */
    int signal;   /* DIED: what ended the shell, 0 when it exited by itself */
    bool matched; /* a pattern was seen; what comes now is not for it */
    bool ended;   /* MATCHED: the command ended within `grace`, and code is its exit code */
    swx_hit hit;  /* MATCHED; offsets in output, which ends where the match starts */
    /* the caller frees it after done.  A stream's may hold more than `limit`, for a reader that is behind */
    swx_buf output;
    size_t limit;    /* of the session: bytes of output that an answer has at most */
    bool processed;  /* the terminal turned "\n" into "\r\n" when the command ended */
    bool typed_out;  /* the operation reached the shell (else it only waited for an earlier command) */
    bool begun;      /* the shell has begun to run the command, or the script of a START */
    swx_error error; /* SYSTEM; DIED, LOST: what is known of why, if anything */

    uint64_t base;        /* offset in the output where the search for patterns began */
    swx_buf heard;        /* searched by the owner: output since then, as it came; the owner frees it */
    swx_buf unsearched;   /* of that what the owner has not taken yet; the owner frees it */
    uint64_t searched;    /* and how much it has */
    uint64_t taken;       /* bytes that swx_session_take gave out */
    int64_t next;         /* INTERRUPT: when to look again */
    int64_t since;        /* INTERRUPT: when the present attempt began */
    int64_t length;       /* INTERRUPT: how long it takes, if it has not to strike again */
    int64_t until;        /* INTERRUPT: when it ends, 0: nothing was interrupted yet */
    int64_t look;         /* INTERRUPT: nanoseconds between looks at what became of it */
    int64_t calm;         /* INTERRUPT: since when the shell has not been seen to start programs, 0: not looked at */
    swx_kernel_pace pace; /* INTERRUPT: what the shell had done by then */
    /* INTERRUPT: how often the present attempt has found that the shell may be about to start a program */
    unsigned looks;
    pid_t target;            /* INTERRUPT: the group that was interrupted last, 0: none */
    pid_t hung_up;           /* INTERRUPT: the group that was hung up or killed last; next it gets a SIGKILL */
    int64_t interrupted_at;  /* INTERRUPT: when */
    pid_t successor;         /* INTERRUPT: the group that came into the foreground after that, 0: none */
    int64_t successor_since; /* INTERRUPT: when it was first seen */
    unsigned successors;     /* INTERRUPT: how many such groups there were */
    unsigned repeats;        /* INTERRUPT: how often the present attempt may still strike another one in its place */
    bool missed;             /* INTERRUPT: no process got a SIGINT: the leader had ended, or the group was killed */
    bool unborn;             /* INTERRUPT: the interrupted process had not yet executed its program */
    bool killed;
    swx_op *link;
};

typedef struct {
    const char *program;      /* path of bash, or of a client */
    char *const *environment; /* NULL-terminated "K=V"; must not contain PS0, PS1, PS2; borrowed during new */
    const char *directory;    /* or NULL */
    unsigned rows, columns;
    size_t output_limit;   /* bytes of output kept per operation */
    bool unproven;         /* the kernel is not asked about the shell, as where it does not tell */
    char *const *argv;     /* NULL-terminated, of a client; borrowed during new.  NULL: bash itself runs here */
    uint64_t program_mark; /* as in swx_spawn */
} swx_session_config;

/* A client is a program that puts its own terminal into raw mode and carries bytes to the terminal of a bash that
 * runs elsewhere, as `docker exec -it` does.  It has to start `bash --noprofile --norc --noediting -i` (4.4 or newer)
 * with TERM, PS0, PS1 and PS2 of its own environment, which its argv passes on (`docker exec -e PS0 ...`).  Beside the
 * differences that README.md lists:
 * - These time out unless their START mark was heard and the owner calls swx_session_resync: `exec bash`, readonly
 * prompts, `unset PROMPT_COMMAND PS1`; `exec 2>file`, or readline turned on, in a file that is sourced.  A program that
 * leaves the terminal raw is not noticed without a reason to ask for its modes.
 * - A command cannot be typed in raw mode (op->raw ends with SWX_END_SYSTEM).
 * - After its tries an interrupt ends with SWX_END_TIMEOUT and kills nothing: the owner kills inside, in a way of its
 * own, and then waits with a SWX_OP_LINE of no bytes.
 */

/* If bash or a client ends before the first prompt, the START operation ends with SWX_END_DIED, the exit code and what
 * was printed; if no prompt comes in time, with SWX_END_LOST and what was printed. */

/* Starts bash on a new terminal.  `now` as everywhere below is the current time. */
swx_status swx_session_new(swx_session **out, const swx_session_config *config, int64_t now, swx_error *err);

/* Closes descriptors and frees.  Processes that still live are killed, as by swx_tree_end_all (SWX_OP_CLOSE does
 * it well). Operations that have not ended are dropped without a call.  NULL is legal. */
void swx_session_free(swx_session *session);

/* Whether swx_session_due would now look at all processes, which may take tenths of a second. */
bool swx_session_is_slow(const swx_session *session);

/* The child whose whole tree swx_session_free ends.  NULL: none, or swx_tree_end_all has done it. */
swx_child *swx_session_doomed(swx_session *session);

/* Descriptors to watch: the terminal (readable when swx_session_wants_read, writable when swx_session_wants_write), and
 * the end of the shell (readable; -1 when it has ended, or where the kernel has none). */
int swx_session_terminal(const swx_session *session);
int swx_session_pidfd(const swx_session *session);
pid_t swx_session_pid(const swx_session *session);
bool swx_session_wants_write(const swx_session *session);

/* False: the reader of a stream is a quarter of the session's limit behind (or of SWX_STREAM_LEAST, if that is more),
 * and the program waits, as on any slow terminal, until swx_session_take has made room.  What the terminal still holds
 * is read all the same when the shell is at its prompt or has ended, or a deadline passes.  While there is an
 * interrupt, or a SWX_OP_LINE of no bytes waits for the end, all is read, and what there is no room for is dropped from
 * the middle, with a note.  False too when a parked terminal is hung up and no descriptor was left to end that. */
bool swx_session_wants_read(const swx_session *session);

/* Hands over an operation.  Ends at once (done is called inside) when the session is dead, lost or closed. */
void swx_session_submit(swx_session *session, swx_op *op, int64_t now);

/* The owner of a held operation knows now what to type: op->typed, op->typed_size, op->raw and op->hints may have been
 * set meanwhile.  Nothing happens if it has ended. */
void swx_session_release(swx_session *session, swx_op *op, int64_t now);

/* Ends an operation with SWX_END_CANCELLED.  A command that it started goes on; nothing happens if it ended before. */
void swx_session_cancel(swx_session *session, swx_op *op);

/* Copies output that `op` has not given out yet, while it runs.  Returns the number of bytes, at most room, which is
 * 100 or more.  Where bytes had to be dropped before they were asked for, SWX_DROPPED_NOTE stands for them.  What may
 * still turn out not to be the command's (a job notice, a prompt) is not given out before the end. */
size_t swx_session_take(swx_session *session, swx_op *op, uint8_t *out, size_t room, int64_t now);

/* Moves what a search by the owner has to look at next to *bytes, which the owner frees.  *at is its offset in what is
 * searched: 0 when that begins anew.  While the owner is SWX_STREAM_LEAST behind, the terminal is not read, as for a
 * stream's reader; where that cannot be kept up, the operation ends with SWX_END_COSTLY. */
void swx_session_take_unsearched(swx_session *session, swx_op *op, swx_buf *bytes, uint64_t *at, int64_t now);

/* The owner has found a match in what it took: the same becomes of it as of one of `match`.  An operation that ended
 * meanwhile, with output that had to be searched yet, is one that matched.  hit: NULL, if the search takes too long. */
void swx_session_found(swx_session *session, swx_op *op, const swx_hit *hit, int64_t now);

/* Reads what is there, at most some hundred KiB. */
void swx_session_readable(swx_session *session, int64_t now);
void swx_session_writable(swx_session *session);
void swx_session_ended(swx_session *session, int64_t now);

/* Sets the function that is called right before a watched descriptor is closed.  (Closing does not end epoll's watch
 * while another process holds a copy.) */
void swx_session_set_unwatch(swx_session *session, void (*unwatch)(void *owner, int fd), void *owner);

/* When swx_session_due wants to be called; SWX_NEVER if not at all. */
int64_t swx_session_deadline(const swx_session *session);
void swx_session_due(swx_session *session, int64_t now);

/* Types raw bytes to what runs in the session, now.  SWX_EBUSY: nothing runs, or the command itself is still being
 * typed: the shell would take them for a command of nobody. */
swx_status swx_session_type(swx_session *session, const uint8_t *bytes, size_t size, int64_t now);

/* For the owner of a client who has seen the shell at its prompt.  Before that look swx_session_look must have said
 * `doubtful`, because otherwise the shell may not have read the command yet.  If no command has ended since (`commands`
 * is the number from then) and the end of the running one was not heard, the shell is asked, and its prompts are
 * restored or replaced.  Output that arrives meanwhile is the command's.  False: there is no doubt, and nothing was
 * typed. */
bool swx_session_resync(swx_session *session, uint64_t commands, int64_t now);

typedef struct {
    bool kernel_proof; /* completion is confirmed through /proc/PID/syscall */
    bool idle;         /* at the prompt, nothing queued */
    bool dead;         /* the shell ended */
    /* elsewhere: the shell has read the command that runs, and its end was not heard; see swx_session_resync */
    bool doubtful;
    bool hides;         /* the command that runs has SWX_HINT_HIDES */
    int64_t commenced;  /* when the last command was typed */
    uint64_t commands;  /* finished */
    uint64_t questions; /* asked */
    uint64_t late;      /* bytes of output that came when no operation waited for them */
} swx_session_state;
swx_session_state swx_session_look(const swx_session *session);

#endif
