/* swx_session_private.h: the inside of a session, shared by its own files and by nothing else.
 *
 * A picture of who feeds whom:
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

#define MS INT64_C(1000000)

enum {
    PART_LIMIT = 64 * 1024, /* of an answer to a question */
    PARTS = 6,
    RAW_TAIL = 2,      /* "}" and newline: typed when the terminal is itself again */
    LOOKS_AT_ONCE = 12 /* a shell needs some microseconds from its prompt to its read */
};

static const int64_t PARK_AFTER = 1000 * MS; /* without a command */
static const int64_t CALM = 5 * MS;
static const int64_t RESYNC_LIMIT = 10000 * MS;
static const int64_t UNHEARD = 200 * MS; /* of silence, where the kernel does not tell and no mark has come */
static const int64_t FIRST_CHECK = 2 * MS, LONGEST_CHECK = 250 * MS;

typedef enum { STARTING, IDLE, RUNNING, RESYNC, LOST, DEAD, CLOSING, CLOSED } state;
typedef enum { ASK, AWAIT_PROMPT, RESTORE } resync_phase;

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

struct swx_session {
    state state;
    swx_pty pty;
    swx_child child;
    swx_kernel kernel;
    swx_marks marks;
    struct stat program; /* of the shell, to know it again */
    uint64_t stack;      /* where its stack begins, for the same; 0: not known */
    const char *loss;    /* why the session is lost, if that is known */

    swx_op *first, **end; /* waiting, in order; where the next one goes */
    int64_t expiry;       /* no waiting operation has an earlier deadline; some may have had */
    swx_op *current;      /* whose command runs, or NULL when it runs for nobody */
    swx_op *interrupts;   /* overtaking ones */
    swx_op *closer;
    pid_t stopped;        /* the group that an interrupt was sent to, 0: none since the command began */
    pid_t newborn;        /* the group of a child that may not have heard one, at its birth; 0: there is none */
    int64_t worked;       /* the shell's own processor time when its terminal was last known to be its own */
    int64_t last_start;   /* of any process then, see swx_kernel_last_start */
    int64_t reader_ahead; /* since when another's read of the terminal is seen ahead of the shell's; 0: it is not */

    swx_buf pending;           /* typed and not yet written */
    size_t written;            /* bytes of it that are */
    size_t column;             /* bytes of the last line that was typed to a program */
    bool paced;                /* has a line that is longer than a terminal keeps: written in pieces, see flush_paced */
    bool passed_on;            /* the last piece is a part of a line */
    bool shell_may_have_piece; /* and the shell may have it: nothing else may be typed, nor be called ended */
    int64_t pace;              /* when to look whether the last piece was read */
    swx_buf output;            /* of the running command */
    bool reader_is_behind;     /* the reader of that is too far behind; see swx_session_wants_read */

    /* the running command */
    candidate found;
    bool begun;             /* its START mark came, or it goes without */
    bool expects_start;     /* it was typed where one is to come */
    bool started;           /* a START mark came: the shell's count has to go up */
    bool start_dropped;     /* see swx_completion_drop_start */
    bool number_too_high;   /* a mark had a number that is too high: somebody else may have typed a command */
    uint64_t base;          /* the shell's count before it */
    bool numbers_may_skip;  /* lines typed to programs: numbers may advance by more than one */
    bool empty_line_before; /* an empty line was typed before it, whose prompt is still to come */
    bool arriving;          /* its text is typed, but for its end, which waits until the shell has read the rest */
    bool raw;               /* with the terminal in raw mode */
    bool hidden;            /* and the end is to be typed without a trace, see swx_pty_hide */
    swx_buf tail;           /* that end */
    bool attached;          /* to a person's terminal */
    bool readline_seen;
    bool replied; /* a query of its was answered, and it was not seen to read that: the shell may have */
    unsigned hints;
    unsigned lines;      /* that were typed for it */
    uint32_t notices;    /* job notices in the output that are being verified */
    uint64_t notice_end; /* where the output ended then */
    int64_t delivered;   /* when it was typed, or the last line for its program, or began behind a carrier */
    int64_t newest;      /* the process that was started last before that, as far as the shell had jobs then */
    int64_t last_data;
    int64_t check;      /* when to look at the shell again */
    int64_t idle_since; /* valid while it is; of a dead shell 0 if it was not */
    int64_t park_at;    /* when to look whether it may rest, which no command moves.  SWX_NEVER: it rests, or cannot */
    bool hung_up;       /* the terminal is, and no descriptor was left to end that: it is not to be watched */
    int64_t backoff;

    /* what holds for the shell */
    uint64_t number;  /* of the last prompt */
    uint32_t jobs;    /* at the last prompt */
    uint32_t owed;    /* how many of those at the one before may have ended without that bash has told of it yet */
    bool start_marks; /* PS0 works */
    bool guard, reassert;
    bool brace_may_be_alias; /* a brace may be an alias: what PROMPT_COMMAND gets does without */
    int code;                /* of the last command */
    bool helper;             /* the shell's stdout is a pipe: what it prints comes through another process */
    int64_t helper_busy;     /* when it was last seen not to have read all */
    int64_t helper_until;    /* how long the end of this command waits for it; 0: the end was not seen yet */
    unsigned start_misses;
    unsigned lost_prompts; /* questions in a row because the prompt carried no mark */

    /* a question */
    resync_phase phase;
    unsigned attempt;
    int64_t give_up;
    int doubted;              /* rank of the mark that was in doubt */
    bool answered;            /* report holds the truth about the command */
    int64_t read_before;      /* bytes that the shell had read before a command without a START mark; -1: not known */
    bool command_thrown_away; /* it had read no more at the question: something else has taken the command */
    bool prompt_missing;      /* the reason: a prompt without a mark */
    bool marks_impossible;    /* only the kernel tells the end, and each time the shell is asked */
    bool owner_saw_end;       /* PROMPT_SEEN: what comes before the answer is the command's output, on its way */
    bool unexpanded;
    int64_t still; /* the shell's processor time when it was last seen silent, or without a START mark; 0: it was not */
    bool interrupted_once;
    int told;       /* the exit code that a mark told before that, -1: none did */
    bool ask_again; /* once the shell is back from that: what comes with a signal may be lost with it */
    swx_mark report;
    int part; /* 0: noise, 1: PIPESTATUS and `$_`; what 2: PS1, 3: PS0, 4: PS2 prints; 5: the terminal's modes */
    swx_buf parts[PARTS];

    /* behind a carrier, where the shell's terminal cannot be looked at */
    bool nonce_is_exposed;       /* the nonce stands in the carrier's environment and the shell's, for others to read */
    bool adds_cr;                /* its "\n" comes as "\r\n", and there is no stty that could change it */
    bool cut;                    /* a CR was the last that was read: it may be the first half of that */
    bool half_line_typed;        /* half a line was typed to a program, and may lie there unread */
    bool modes_may_differ;       /* somebody typed, it was interrupted, or a program used the screen */
    bool processed;              /* the answer to a question: "\n" came as "\r\n" after the command */
    bool keeps_modes;            /* PROMPT_COMMAND puts modes back in which commands can be typed */
    bool arms_prompt;            /* this question is there to arm PROMPT_COMMAND for the command that waits */
    bool prompt_follows_guard;   /* with a guard: the prompt shows behind it all the same */
    int64_t interrupted_at;      /* when ^C was typed for the running command, or sent; 0: not at all */
    int64_t sync_newline_at;     /* when an empty line was typed to see who reads the terminal after that; 0: not yet */
    unsigned sync_newlines;      /* how many */
    candidate before;            /* the prompt before the first of them */
    swx_modes_question question; /* of the question */
    swx_buf modes; /* as `stty -g` prints them: those that commands start with; empty until they are known */

    int64_t learn_until;
    int64_t close_step, close_limit;
    unsigned sweeps;
    size_t output_limit;
    unsigned query; /* progress in a terminal query */

    swx_session_state facts;
    void (*unwatch)(void *owner, int fd);
    void *owner;
};

static inline int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }
/* Looks at the shell again after that time. */
static inline void swx_session_check_in(swx_session *s, int64_t now, int64_t delay) { s->check = now + delay; }

/* The same, and later each time from then on: see swx_completion_look_again. */
static inline void swx_session_check_from(swx_session *s, int64_t now, int64_t delay)
{
    s->backoff = delay;
    s->check = now + delay;
}

static inline bool has_evidence(const swx_session *s) { return s->kernel.buffer != 0; }
static inline bool typed_all(const swx_session *s) { return s->written == s->pending.size; }

/* ---- swx_session.c ---- */

void swx_session_become_idle(swx_session *s, int64_t now);
/* Takes the first operation out of a list, or of the queue. */
swx_op *swx_session_pop(swx_op **list);
swx_op *swx_session_take_first(swx_session *s);
/* A read found the terminal hung up: nobody has it open, and it is at rest. */
void swx_session_end_hangup(swx_session *s);
/* The output begins anew, and so do the offsets that refer to it. */
void swx_session_restart_output(swx_session *s);
/* Gets back what a session at rest has let go of. */
swx_status swx_session_unpark(swx_session *s, int64_t now, swx_error *err);

/* Whose output it is that comes now: of the running command's operation, else of the first interrupt that waits for its
 * end.  Ends that, if there is one, with the output. */
swx_op *swx_session_claimant(const swx_session *s);
void swx_session_finish_claimant(swx_session *s, swx_end end, int code);
/* Ends an operation that has left its list, or all of a list, without output. */
void swx_session_finish(swx_session *s, swx_op *op, swx_end end, int code);
void swx_session_finish_list(swx_session *s, swx_op **list, swx_end end, int code);
/* Ends everything: the current operation with its output, the others without. */
void swx_session_finish_all(swx_session *s, swx_end end, int code);
/* Synchronisation cannot be proved: everything ends as LOST, and the session is of no more use. */
void swx_session_lose(swx_session *s);
/* A carrier that ends or keeps silent before the first prompt: what it said goes to whoever waits for the start. */
void swx_session_claim_start(swx_session *s);

/* ---- swx_typing.c ---- */

/* False of all that types: out of memory, nothing of it is typed. */
void swx_session_flush_pending(swx_session *s);
bool swx_session_type_bytes(swx_session *s, const void *bytes, size_t size);
/* Types the end of a command, and gives the terminal the modes in which it runs. */
bool swx_session_type_end(swx_session *s);
/* Drops half a line that the shell at its prompt would take for the beginning of what is typed next.  Of a carrier:
 * what was typed to a program. */
bool swx_session_drop_input(swx_session *s);
/* Notes what was typed to a program. */
void swx_typing_note(swx_session *s, const uint8_t *bytes, size_t size);

/* Begins waiting operations as far as the state allows: whenever something may have ended that they wait for. */
void swx_session_begin(swx_session *s, int64_t now);
bool swx_typing_can_begin(const swx_session *s);

/* ---- swx_evidence.c ---- */

typedef enum { NOT_YET, AT_PROMPT, NO_EVIDENCE } where;

/* Remembers the shell's program.  Whether a process is that still, and whether the shell's own is another (exec). */
void swx_shell_remember(swx_session *s);
bool swx_shell_is_program_of(const swx_session *s, pid_t pid);
bool swx_shell_is_replaced(const swx_session *s);

/* Where the shell is, by up to so many looks. */
where swx_evidence_look(swx_session *s, unsigned looks);
/* Whether the shell, which was seen in its read, waits there for input: nothing that was typed is on its way. */
bool swx_evidence_waits_for_input(const swx_session *s);
/* Reads until the terminal has nothing more: then all that was written before is here.  False: something else happened.
 */
bool swx_evidence_drained(swx_session *s, int64_t now);
/* Nothing came for a while. */
bool swx_evidence_is_silent(const swx_session *s, int64_t now);
/* A shell whose prompts do not show is silent, has its terminal for itself, and has read all that was typed.  alone:
 * and does not wait for another process of its group, see swx_kernel_may_await_input. */
bool swx_evidence_is_still(swx_session *s, int64_t now, bool alone);
/* Another process may read the terminal ahead of the shell; it is killed. */
bool swx_evidence_is_reader_ahead(swx_session *s, where at, int64_t now);

/* ---- swx_completion.c ---- */

/* Looks whether what runs has come to its end.  fresh: right after output, when the shell may be on its way to its
 * prompt. */
void swx_completion_check(swx_session *s, int64_t now, bool fresh);
/* Looks at the shell again, later each time. */
void swx_completion_look_again(swx_session *s, int64_t now);
/* Whether the prompt shows, or may still do so. */
bool swx_completion_shows_prompt(const swx_session *s, int64_t now);
/* The command has ended.  jobs: as the shell counts them; unread: why its text was not read, or NULL. */
void swx_completion_conclude(swx_session *s, int code, uint32_t jobs, const char *unread, int64_t now);
/* Gives the terminal the modes in which commands are typed. */
void swx_completion_apply_modes(swx_session *s);

/* What the recogniser holds back and can be no mark any more is output. */
void swx_completion_take_held(swx_session *s);
/* Takes out what a PS2 and a PS0 that cannot be replaced have printed at the output's beginning, and returns how much
 * that was.  holds: they may still be coming. */
size_t swx_completion_drop_start(swx_session *s);
bool swx_completion_holds_start(const swx_session *s);
/* The output may hold job notices that are to be taken out of it when the command has ended; takes them out. */
bool swx_completion_asks_about_notices(const swx_session *s);
void swx_completion_remove_notices(swx_session *s);

/* ---- swx_resync.c ---- */

/* Asks the shell how its last command ended: its marks are in doubt; its prompt carried none; or it was seen at its
 * prompt by another, while output and a mark may be on their way. */
typedef enum { MARK_IN_DOUBT, PROMPT_WITHOUT_MARK, PROMPT_SEEN } resync_reason;
void swx_resync_begin(swx_session *s, int64_t now, resync_reason reason);
/* Looks whether the question is answered, and goes on to what follows. */
void swx_resync_check(swx_session *s, int64_t now);
/* The shell behind a carrier has read what runs, and its end was not heard. */
bool swx_resync_is_needed(const swx_session *s);
/* The answer to a doubt is here: what came before it was the running command's, up to its prompt. */
void swx_resync_end_doubt(swx_session *s);
/* Takes out of the output what our own elements of PROMPT_COMMAND show. */
void swx_resync_drop_own(swx_session *s);

/* ---- swx_output.c ---- */

/* The operation whose patterns the output is searched for, or NULL. */
swx_op *swx_output_matching(const swx_session *s);
/* The search for an operation's patterns begins at that offset of the output. */
void swx_output_begin_search(const swx_session *s, swx_op *op, uint64_t base);
/* Output of the running command: searched for patterns, and kept. */
void swx_output_take_output(swx_session *s, const uint8_t *bytes, size_t size);
/* Bytes that are no mark: output, part of an answer, or noise, as the state has it. */
void swx_output_take_plain(swx_session *s, const uint8_t *bytes, size_t size);

/* Reads what is there, some hundred KiB at most.  whole: until a read finds nothing, which also flushes the kernel's
 * queues; else a short read is taken for the end, because a further one would only do that.  True: there may be more.
 * Where a reader is behind it reads as far as there is room, of which there is more for `whole`. */
bool swx_output_read(swx_session *s, bool whole, int64_t now);
/* Whether the terminal is not read because of who reads the output; and when that has taken some. */
bool swx_output_is_held(const swx_session *s);
void swx_output_make_room(swx_session *s, int64_t now);
/* Tells the reader of a stream, if there is something to take. */
void swx_output_tell_news(swx_session *s);

/* ---- swx_interrupt.c ---- */

void swx_interrupt_step(swx_session *s, int64_t now);

/* Bash 5.2 may go to its prompt on a SIGINT around the birth of a child, which forgets that signal, runs all the same
 * and may take the terminal.  The shell then waits for it behind the next command, whose exit code would be that
 * child's: so it is asked something, and if it waits behind its answer, its youngest child is sent another SIGINT. */
bool swx_interrupt_left_newborn(swx_session *s);
void swx_interrupt_end_newborn(swx_session *s, int64_t now);

/* ---- swx_close.c ---- */

/* Ends everything as CLOSED and sends the shell away. */
void swx_close_begin(swx_session *s, int64_t now);
/* One step of closing: waits for the shell, kills, looks for what is left. */
void swx_close_step(swx_session *s, int64_t now);

#endif
