/* swx_session_private.h: the inside of a session, for the session's own files alone.
 *
 * The flow of data:
 *
 *   terminal --read--> marks --plain--> matcher, output buffer          take_plain
 *                            --marks--> candidate for the end           take_mark
 *   check:  candidate + consumed + kernel + nothing more --> conclude --> done
 *                                        in doubt        --> question --> restore --> conclude
 */
#ifndef SWX_SESSION_PRIVATE_H
#define SWX_SESSION_PRIVATE_H

#include "swx_session.h"

#include <sys/stat.h>

#include "swx_marks.h"
#include "swx_kernel.h"
#include "swx_pty.h"
#include "swx_shelltext.h"
#include "swx_transport.h"

#define MS INT64_C(1000000)

enum {
    PART_LIMIT = 64 * 1024, /* of an answer to a question */
    RAW_TAIL = 2,           /* "}" and newline: typed when the terminal is itself again */
    LOOKS_AT_ONCE = 12      /* a shell needs some microseconds from its prompt to its read */
};

static const int64_t PARK_AFTER = 1000 * MS; /* without a command */
static const int64_t CALM = 5 * MS;
static const int64_t RESYNC_LIMIT = 10000 * MS;
static const int64_t UNHEARD = 200 * MS; /* of silence, where the kernel does not tell and no mark has come */
static const int64_t FIRST_CHECK = 2 * MS, LONGEST_CHECK = 250 * MS;

typedef enum { STARTING, IDLE, RUNNING, RESYNC, LOST, DEAD, CLOSING, CLOSED } state;
typedef enum { ASK, AWAIT_PROMPT, RESTORE } resync_phase;

/* The parts of an answer: PIPESTATUS and `$_`, the texts that the prompts print, the terminal's modes.  What comes
 * before the answer is noise, which is dropped. */
typedef enum { PART_NOISE, PART_STATE, PART_PS1, PART_PS0, PART_PS2, PART_MODES, PARTS } answer_part;

/* The best mark so far for the end of the running command. */
typedef struct {
    int rank;      /* 0 none, 1 the number did not advance (an empty command), 2 the expected number or a guard */
    int code;      /* -1: not expanded */
    bool conflict; /* marks of the same rank had different codes */
    bool altered;  /* PS1 or PS0 are no longer what we made them */
    bool ps0_kept; /* PS0 is */
    uint64_t number;
    uint32_t jobs;
    uint64_t at; /* output.total when it came */
} candidate;

/* The operations that wait, in order. */
typedef struct {
    swx_op *first, **end; /* where the next one goes */
    int64_t expiry;       /* none of them has an earlier deadline; some may have had */
} swx_waiting;

/* What holds for the shell. */
typedef struct {
    struct stat program;  /* to know it again */
    uint64_t stack;       /* where its stack begins, for the same; 0: not known */
    int64_t learn_until;  /* when it gets an operation although the read of its prompt was not learned */
    uint64_t number;      /* of the last prompt */
    uint32_t jobs;        /* at the last prompt */
    uint32_t owed;        /* jobs of the prompt before that may have ended without a notice so far */
    int code;             /* of the last command */
    int64_t worked;       /* its own processor time when its terminal was last known to be its own */
    int64_t last_start;   /* of any process then, see swx_kernel_last_start */
    int64_t reader_ahead; /* since when another process is seen to read the terminal ahead of it; 0: not seen */
    bool helper;          /* its stdout or stderr is a pipe, and output comes through another process */
    int64_t helper_busy;  /* when that was last seen with unread bytes */
    /* its prompts */
    bool start_marks;          /* PS0 works */
    unsigned start_misses;     /* commands in a row without a START mark */
    unsigned lost_prompts;     /* questions in a row because of a prompt without a mark */
    bool marks_impossible;     /* only the kernel tells the end, and the shell is asked after each command */
    bool guard, reassert;      /* elements of PROMPT_COMMAND: see swx_restore */
    bool prompt_follows_guard; /* the prompt shows in spite of the guard */
    bool brace_may_be_alias;   /* those elements do without */
    /* elsewhere, where its own terminal is out of reach */
    bool nonce_is_exposed; /* it is in the environments of the client and the shell, where others can read it */
    bool input_named;      /* its input had the name of a terminal */
    bool input_moved;      /* and has it no more, after `exec <file` or `exec </dev/tty` */
    bool adds_cr;          /* "\n" comes as "\r\n", and there is no stty to change that */
    bool modes_may_differ; /* a program was typed to or interrupted, or used the screen */
    bool keeps_modes;      /* PROMPT_COMMAND restores the modes in which commands can be typed */
    swx_buf modes;         /* the modes that commands start with, as `stty -g` prints them; empty: unknown */
} swx_shell;

/* What is typed. */
typedef struct {
    swx_buf pending;           /* bytes that are not written yet */
    size_t written;            /* how many of them are */
    size_t column;             /* bytes of the last line that was typed to a program */
    bool half_line;            /* half a line was typed to a program, and may lie there unread */
    bool paced;                /* has a line that is longer than a terminal keeps: written in pieces, see flush_paced */
    bool passed_on;            /* the last piece is a part of a line */
    size_t replies;            /* bytes of replies to queries since everything was typed */
    bool shell_may_have_piece; /* the shell may have a piece: type no more, and report no end */
    int64_t pace;              /* when to look whether the last piece was read */
    bool arriving;             /* a command is typed except its end, which waits until the shell has read the rest */
    bool raw;                  /* it is typed in raw mode */
    bool hidden;               /* its end must be typed without an echo, see swx_pty_hide */
    swx_buf tail;              /* that end */
} swx_input;

/* The running command. */
typedef struct {
    candidate found;
    unsigned hints;
    unsigned lines;         /* typed for it */
    int64_t delivered;      /* when it or the last line for its program was typed; elsewhere when it began */
    int64_t newest_before;  /* the newest process before that, if the shell had jobs or a helper */
    uint64_t base;          /* the shell's count before it */
    bool begun;             /* its START mark came, or it needs none */
    bool expects_start;     /* a START mark is to come */
    bool started;           /* a START mark came: the shell's count has to go up */
    bool start_dropped;     /* see swx_completion_drop_start */
    int64_t read_before;    /* bytes the shell had read before a command without a START mark; -1: unknown */
    bool empty_line_before; /* an empty line was typed before it, whose prompt is still to come */
    bool numbers_may_skip;  /* lines typed to programs: numbers may advance by more than one */
    bool number_too_high;   /* a mark had too high a number: another process may have typed a command */
    bool readline_seen;
    bool replied;              /* a query of it was answered, and the shell may have read the answer */
    bool processed;            /* "\n" came as "\r\n" from it */
    uint32_t notices;          /* possible job notices in the output, which the next prompt verifies */
    uint64_t notice_end;       /* the end of the output before that prompt */
    int64_t helper_until;      /* until when its end waits for the shell's helper; 0: the end was not seen yet */
    int64_t worked_when_still; /* the shell's processor time when last seen silent, or without a START mark; 0: not */
    /* elsewhere */
    int64_t interrupted_at;  /* 0: it was not */
    int64_t sync_newline_at; /* when an empty line was typed to prove that the shell reads again; 0: not yet */
    unsigned sync_newlines;  /* how many */
    candidate before;        /* the prompt before the first of them */
} swx_run;

/* What the terminal says. */
typedef struct {
    swx_buf kept; /* of the running command */
    size_t limit;
    bool reader_is_behind; /* the reader of that is too far behind; see swx_session_wants_read */
    int64_t last_data;     /* when something came */
    bool cr_held;          /* a CR is held back, because it may be the first half of "\r\n" */
    unsigned query;        /* progress in a terminal query */
} swx_output;

/* A question to the shell. */
typedef struct {
    resync_phase phase;
    unsigned attempt;            /* to restore the prompts */
    int doubted;                 /* the rank of the mark in doubt */
    bool prompt_missing;         /* the reason: a prompt without a mark */
    bool owner_saw_end;          /* the reason: PROMPT_SEEN; bytes before the answer are the command's output */
    bool arms_prompt;            /* it arms PROMPT_COMMAND for the command that waits */
    bool input_moved;            /* the reason: bytes before the answer may be the output of what the shell reads now */
    bool thrown_away;            /* the shell has read no more since the command: another program has taken that */
    bool unexpanded;             /* the mark in doubt was */
    bool answered;               /* the answer holds the truth about the command */
    bool interrupted;            /* the shell was, because it did not answer or may have read something else */
    bool ask_again;              /* ask once the SIGINT was handled, which may discard input */
    int code_before;             /* the exit code of a mark before that; -1: none came */
    swx_modes_question question; /* about the terminal's modes */
} swx_resync;

/* The shell's last answer. */
typedef struct {
    swx_mark report;
    answer_part part; /* that comes now */
    swx_buf parts[PARTS];
} swx_answer;

/* The interrupts under way. */
typedef struct {
    swx_op *first;
    pid_t group;   /* that was interrupted last; 0: none since the command began */
    pid_t newborn; /* the group of a child that may have missed an interrupt when it was forked; 0: none */
} swx_interrupts;

/* The end. */
typedef struct {
    swx_op *first; /* operations that wait for it */
    int64_t step, limit;
    unsigned sweeps;
    bool was_idle; /* the shell, when its end was requested */
    bool begun;
} swx_closing;

/* A session without a command gives descriptors back. */
typedef struct {
    int64_t idle_since; /* valid while idle; 0 for a shell that died while it was not idle */
    int64_t park_at;    /* when to look whether it may park, whatever ran since; SWX_NEVER: it is, or cannot */
    bool hung_up;       /* the terminal is hung up and no descriptor was left to end that, so it is not watched */
} swx_parking;

struct swx_session {
    state state;
    const swx_transport *transport;
    swx_pty pty;
    swx_child child;
    swx_kernel kernel;
    swx_marks marks;
    swx_waiting queue;
    swx_op *current; /* the operation of the command that runs; NULL: it has ended before its command */
    swx_shell shell;
    swx_input input;
    swx_run run;
    swx_output output;
    swx_resync resync;
    swx_answer answer;
    swx_interrupts interrupt;
    swx_closing close;
    swx_parking parking;
    int64_t check, backoff; /* when to look at the shell again, and the next pause */
    int64_t give_up;        /* a shell that starts, or does not answer */
    const char *loss;       /* why the session is lost, if that is known */
    swx_session_state facts;
    void (*unwatch)(void *owner, int fd);
    void *owner;
};

static inline int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }
/* Looks at the shell again after `delay`. */
static inline void swx_session_check_in(swx_session *s, int64_t now, int64_t delay) { s->check = now + delay; }

/* Looks at the shell again after `delay`, and then less and less often (swx_completion_look_again). */
static inline void swx_session_check_from(swx_session *s, int64_t now, int64_t delay)
{
    s->backoff = delay;
    s->check = now + delay;
}

static inline bool has_evidence(const swx_session *s) { return s->kernel.buffer != 0; }
/* Whether a group, perhaps none, is one that the shell has started. */
static inline bool is_program(const swx_session *s, pid_t group) { return group > 0 && group != s->child.pid; }
static inline bool typed_all(const swx_session *s) { return s->input.written == s->input.pending.size; }

/* ---- swx_session.c ---- */

void swx_session_become_idle(swx_session *s, int64_t now);
/* Takes the first operation out of a list, or of the queue. */
swx_op *swx_session_pop(swx_op **list);
swx_op *swx_session_take_first(swx_session *s);
/* Handles a hang-up of a parked terminal, which no process has open. */
void swx_session_end_hangup(swx_session *s);
/* Resets the offsets that refer to the output, which begins anew. */
void swx_session_restart_output(swx_session *s);
/* Opens the descriptors again that a parked session has closed. */
swx_status swx_session_unpark(swx_session *s, int64_t now, swx_error *err);

/* The operation that gets the present output: that of the running command, else the first interrupt that waits for its
 * end.  _finish_claimant ends it with the output, if there is one. */
swx_op *swx_session_claimant(const swx_session *s);
void swx_session_finish_claimant(swx_session *s, swx_end end, int code);
/* Ends an operation that has left its list, or all of a list, without output. */
void swx_session_finish(swx_session *s, swx_op *op, swx_end end, int code);
void swx_session_finish_list(swx_session *s, swx_op **list, swx_end end, int code);
/* Ends everything: the current operation with its output, the others without.  Nothing is typed any more. */
void swx_session_finish_all(swx_session *s, swx_end end, int code);
/* Ends everything as LOST, because synchronisation cannot be proved; the session is of no more use. */
void swx_session_lose(swx_session *s);
/* Gives what was printed before the first prompt, which does not come, to the START operation. */
void swx_session_claim_start(swx_session *s);

/* ---- swx_typing.c ---- */

/* Functions that type return false if memory is short; nothing was typed then. */
void swx_session_flush_pending(swx_session *s);
/* Forgets what is still to be typed. */
void swx_typing_forget(swx_session *s);
bool swx_session_type_bytes(swx_session *s, const void *bytes, size_t size);
/* Types the end of a command, and sets the modes in which it runs. */
bool swx_session_type_end(swx_session *s);
/* As in swx_transport.h. */
bool swx_session_drop_input(swx_session *s);
/* Notes what is typed to a program. */
void swx_typing_note(swx_session *s, const uint8_t *bytes, size_t size);

/* Begins waiting operations as far as the state allows; called whenever they may have become free to begin. */
void swx_session_begin(swx_session *s, int64_t now);
bool swx_typing_can_begin(const swx_session *s);

/* ---- swx_evidence.c ---- */

typedef enum { NOT_YET, AT_PROMPT, NO_EVIDENCE } where;

/* Remembers the shell's program.  _is_program_of: whether a process runs it.  _is_replaced: whether the shell's process
 * has executed another one. */
void swx_shell_remember(swx_session *s);
bool swx_shell_is_program_of(const swx_session *s, pid_t pid);
bool swx_shell_is_replaced(const swx_session *s);

/* Whether the shell is at its prompt, by up to `looks` looks at the kernel. */
where swx_evidence_look(swx_session *s, unsigned looks);
/* Whether a shell that was seen in its read waits for input, and no typed bytes are on their way. */
bool swx_evidence_waits_for_input(const swx_session *s);
/* Reads until the terminal is empty, so that all output written before has arrived.  False: the state changed. */
bool swx_evidence_drained(swx_session *s, int64_t now);
bool swx_evidence_is_silent(const swx_session *s, int64_t now);
/* Whether the shell is silent, is in the foreground, has read everything typed and may wait for input.  alone: as in
 * swx_kernel_may_await_input. */
bool swx_evidence_is_still(swx_session *s, int64_t now, bool alone);
/* Whether another process reads the terminal ahead of the shell; it is killed. */
bool swx_evidence_is_reader_ahead(swx_session *s, where at, int64_t now);

/* ---- swx_completion.c ---- */

/* Checks whether the command has ended.  fresh: right after output, when the shell may be on its way to its prompt. */
void swx_completion_check(swx_session *s, int64_t now, bool fresh);
/* Looks at the shell again, later each time. */
void swx_completion_look_again(swx_session *s, int64_t now);
/* Whether the prompt shows, or may still do so. */
bool swx_completion_shows_prompt(const swx_session *s, int64_t now);
/* Ends the command.  jobs: the shell's count; unread: why the command was not read, or NULL. */
void swx_completion_conclude(swx_session *s, int code, uint32_t jobs, const char *unread, int64_t now);
/* Gives the terminal the modes in which commands are typed. */
void swx_completion_apply_modes(swx_session *s);

/* Takes bytes that the recogniser holds back, and that can no longer become a mark, as output. */
void swx_completion_take_held(swx_session *s);
/* Removes from the output's beginning the texts of a PS2 and a PS0 that cannot be replaced; returns how many bytes.
 * _holds_start: those texts may still be coming. */
size_t swx_completion_drop_start(swx_session *s);
/* Whether PS0 may come to the terminal on another way than the output, as after `exec 2> >(tee log)`. */
bool swx_completion_start_may_be_late(swx_session *s);
bool swx_completion_holds_start(const swx_session *s);
/* Whether the output may hold job notices, which go when the command has ended; and removes them. */
bool swx_completion_asks_about_notices(const swx_session *s);
void swx_completion_remove_notices(swx_session *s);

/* ---- swx_resync.c ---- */

/* Asks the shell how its last command ended.  PROMPT_SEEN: the owner saw it at its prompt, and output and a mark may be
 * on their way.  NO_DOUBT: only to change its PROMPT_COMMAND for the command that waits. */
typedef enum { MARK_IN_DOUBT, PROMPT_WITHOUT_MARK, PROMPT_SEEN, NO_DOUBT } resync_reason;
void swx_resync_begin(swx_session *s, int64_t now, resync_reason reason);
/* Checks whether the question is answered, and takes the next step. */
void swx_resync_check(swx_session *s, int64_t now);
/* Whether a shell elsewhere has read the command, and its end was not heard. */
bool swx_resync_is_needed(const swx_session *s);
/* Takes the output that came before the answer for the command's, up to its prompt. */
void swx_resync_end_doubt(swx_session *s);
/* Removes the traces of our own elements of PROMPT_COMMAND from the output. */
void swx_resync_drop_own(swx_session *s);

/* ---- swx_output.c ---- */

/* For an operation that begins.  anew: its output is empty; else it begins with what no operation has got. */
void swx_output_begin(swx_session *s, size_t limit, bool anew);
/* The operation gets the present output; what comes from now on is kept for the next one that does not begin anew. */
void swx_output_hand_over(swx_session *s, swx_op *op);
/* The operation whose patterns the output is searched for, or NULL. */
swx_op *swx_output_matching(const swx_session *s);
/* The search for an operation's patterns begins at that offset of the output. */
void swx_output_begin_search(const swx_session *s, swx_op *op, uint64_t base);
/* Output of the running command: searched for patterns, and kept. */
void swx_output_take_output(swx_session *s, const uint8_t *bytes, size_t size);
/* Takes bytes that are no mark: output, a part of an answer, or noise, depending on the state. */
void swx_output_take_plain(swx_session *s, const uint8_t *bytes, size_t size);

/* Reads some hundred KiB at most.  whole: until a read finds nothing, which also flushes the kernel's queues; else up
 * to a short read.  If a stream's reader is behind, it reads as far as there is room; `whole` has more room.  True:
 * there may be more. */
bool swx_output_read(swx_session *s, bool whole, int64_t now);
/* Whether reading the terminal waits for the reader of the output; and ends that wait when there is room again. */
bool swx_output_is_held(const swx_session *s);
void swx_output_make_room(swx_session *s, int64_t now);
/* Tells the reader of a stream, if there is something to take. */
void swx_output_tell_news(swx_session *s);

/* ---- swx_interrupt.c ---- */

void swx_interrupt_step(swx_session *s, int64_t now);
/* Notes that the group is sent a signal now. */
void swx_interrupt_note(swx_session *s, swx_op *op, pid_t group, int64_t now);

/* Bash 5.2 may return to its prompt on a SIGINT during a fork, while the child misses the signal, runs on, and may take
 * the terminal.  The shell would wait for that child after the next command, and report its exit code.  So the shell is
 * asked a question, and if it waits after its answer, its youngest child gets another SIGINT. */
bool swx_interrupt_left_newborn(swx_session *s);
void swx_interrupt_end_newborn(swx_session *s, int64_t now);

/* ---- swx_close.c ---- */

/* Ends everything as CLOSED; the first step tells the shell to end. */
void swx_close_begin(swx_session *s, int64_t now);
/* One step of closing: waits for the shell, kills, looks for remaining processes. */
void swx_close_step(swx_session *s, int64_t now);

#endif
