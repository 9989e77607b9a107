/* The state machine of one session.  A picture of who feeds whom:
 *
 *   terminal --read--> fence --plain--> matcher, output buffer          take_plain
 *                            --marks--> candidate for the end           take_mark
 *   settle: candidate + consumed + kernel + nothing more --> conclude --> done
 *                                        in doubt        --> challenge --> restore --> conclude
 */
#include "swx_session.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "swx_alloc.h"
#include "swx_fence.h"
#include "swx_kernel.h"
#include "swx_notice.h"
#include "swx_pty.h"
#include "swx_shelltext.h"

#define MS INT64_C(1000000)

enum {
    READ_SIZE = 64 * 1024,
    READS_PER_CALL = 64,      /* a terminal gives at most 4 KiB a read */
    SHORT_READ = 2048,
    LOOKS_AT_ONCE = 12,       /* a shell needs some microseconds from its prompt to its read */
    PART_LIMIT = 64 * 1024,   /* of an answer to a challenge */
    PARTS = 5,
    NOTICE_LIMIT = 1 << 20,   /* output that is searched for job notices */
    CHALLENGE_ATTEMPTS = 3,   /* to get a mark shown at all */
    CLOSE_SWEEPS = 400,
    LINE_MAX = 4095,          /* of a terminal in canonical mode; what is longer is cut silently */
    RAW_TAIL = 2,             /* "}" and newline: typed when the terminal is itself again */
    UNCLAIMED_LIMIT = 1 << 20 /* output kept of a command that runs for nobody */
};

static const int64_t SHELL_START_LIMIT = 60000 * MS;
static const int64_t CHALLENGE_LIMIT = 10000 * MS;
static const int64_t FIRST_CHECK = 2 * MS, LONGEST_CHECK = 250 * MS;
static const int64_t DELIVERY_GRACE = 50 * MS; /* an interrupt waits that long for a command to begin */
static const int64_t ARRIVAL_LIMIT = 10000 * MS; /* or until the shell has read it, as long as it reads at all */
static const int64_t BUSY_GRACE = 20 * MS; /* for a shell that may be about to start a program */
static const int64_t BUSY_LOOK = MS / 2;
static const int64_t KILL_GRACE = 1000 * MS;
static const int64_t CLOSE_GRACE = 1000 * MS; /* for the shell to end by itself: it may be saving its history */
static const int64_t CLOSE_LOOK = 20 * MS;
static const int64_t CALM = 5 * MS;
static const int64_t LEARN_LIMIT = 2000 * MS;   /* for a shell that showed its prompt to go to its read */
static const int64_t START_GRACE = 20 * MS;     /* for a START mark, once the command was read */

typedef enum { STARTING, IDLE, RUNNING, CHALLENGE, LOST, DEAD, CLOSING, CLOSED } state;
typedef enum { ASK, AWAIT_PROMPT, RESTORE } challenge_phase;

/* The best mark so far for the end of the running command. */
typedef struct {
    int rank; /* 0 none, 1 the number did not advance (an empty command), 2 the expected number or a guard */
    int code; /* -1: not expanded */
    bool conflict; /* marks of the same rank had different codes */
    bool altered;  /* PS1 or PS0 are no longer what we made them */
    uint64_t number;
    uint32_t jobs;
    uint64_t at; /* output.total when it came */
} candidate;

struct swx_session {
    state state;
    swx_pty pty;
    swx_child child;
    swx_kernel kernel;
    swx_fence fence;
    struct stat program; /* of the shell, to know it again */

    swx_op *first, *last; /* waiting, in order */
    swx_op *current;      /* whose command runs, or NULL when it runs for nobody */
    swx_op *interrupts;   /* overtaking ones */
    swx_op *closer;

    swx_buf pending;   /* typed and not yet written */
    size_t written;    /* bytes of it that are */
    swx_buf output;    /* of the running command */

    /* the running command */
    candidate found;
    bool begun;        /* its START mark came, or none is expected */
    bool expects_start;
    bool started;      /* a START mark came: the shell's count has to go up */
    bool beyond;       /* a mark had a number that is too high: somebody else may have typed a command */
    uint64_t base;     /* the shell's count before it */
    bool loose;        /* lines typed to programs: numbers may advance by more than one */
    bool arriving;     /* its text is typed with the terminal in raw mode, but for the last line */
    bool attached;     /* to a person's terminal */
    bool readline_seen;
    unsigned hints;
    unsigned lines;      /* that were typed for it */
    uint32_t notices;    /* job notices in the output that are being verified */
    uint64_t notice_end; /* where the output ended then */
    int64_t delivered; /* when it was typed */
    int64_t last_data;
    int64_t check;     /* when to look at the shell again */
    int64_t backoff;

    /* what holds for the shell */
    uint64_t number;   /* of the last prompt */
    uint32_t jobs;     /* at the last prompt */
    bool start_marks;  /* PS0 works */
    bool guard, reassert;
    int code;          /* of the last command */
    bool helper;       /* the shell's stdout is a pipe: what it prints comes through another process */
    unsigned start_misses;
    unsigned lost_prompts; /* challenges in a row because the prompt carried no mark */

    /* a challenge */
    challenge_phase phase;
    unsigned attempt;
    int64_t give_up;
    int doubted;   /* rank of the mark that was in doubt */
    bool answered; /* report holds the truth about the command */
    bool prompt_missing; /* the reason: a prompt without a mark */
    bool blind;          /* our marks cannot be kept at all: only the kernel tells the end, and each time the shell is asked */
    bool unexpanded;
    bool interrupted_once;
    bool ask_again; /* once the shell is back from that: what comes with a signal may be lost with it */
    swx_mark report;
    int part; /* 0: noise, 1: `$_`, 2: what PS1 prints, 3: what PS0 prints, 4: what PS2 prints */
    swx_buf parts[PARTS];

    int64_t learn_until;
    int64_t close_step, close_limit;
    unsigned sweeps;
    size_t output_limit;
    unsigned query; /* progress in a terminal query */
    char query_text[4];

    swx_session_state facts;
    void (*unwatch)(void *owner, int fd);
    void *owner;
};

/* ---- time and small things ------------------------------------------------------------------------------------- */

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }
static bool has_evidence(const swx_session *s) { return s->kernel.buffer != 0; }

static void check_in(swx_session *s, int64_t now, int64_t delay)
{
    s->check = now + delay;
}

/* The output begins anew, and the offsets that refer to it. */
static void restart_output(swx_session *s)
{
    s->found.at = 0;
    s->notices = 0;
    for (swx_op *op = s->interrupts; op; op = op->link) {
        op->base = 0;
    }
}

/* Ends an operation.  The output of the running command goes with it when `with_output`. */
static void finish(swx_session *s, swx_op *op, swx_end end, int code, bool with_output)
{
    op->end = end;
    op->code = code;
    op->signal = end == SWX_END_DIED && WIFSIGNALED(s->child.wait_status) ? WTERMSIG(s->child.wait_status) : 0;
    if (with_output) {
        op->output = s->output;
        swx_buf_init(&s->output, UNCLAIMED_LIMIT);
        restart_output(s);
    } else {
        swx_buf_init(&op->output, s->output_limit);
    }
    op->done(op);
}

static void finish_list(swx_session *s, swx_op **list, swx_end end, int code)
{
    while (*list) {
        swx_op *op = *list;
        *list = op->link;
        op->link = NULL;
        finish(s, op, end, code, false);
    }
}

static void finish_all(swx_session *s, swx_end end, int code)
{
    swx_op *current = s->current;
    s->current = NULL;
    if (current) {
        finish(s, current, end, code, true);
    }
    finish_list(s, &s->interrupts, end, code);
    finish_list(s, &s->first, end, code);
    s->last = NULL;
}

static void lose(swx_session *s)
{
    s->state = LOST;
    finish_all(s, SWX_END_LOST, 0);
}

/* ---- typing ---------------------------------------------------------------------------------------------------- */

static void flush_pending(swx_session *s)
{
    while (s->written < s->pending.size) {
        ssize_t size = write(s->pty.master, s->pending.data + s->written, s->pending.size - s->written);
        if (size < 0 && errno == EINTR) {
            continue;
        }
        if (size <= 0) {
            return; /* full: writable will come; anything worse shows as the shell's end */
        }
        s->written += (size_t)size;
    }
    swx_buf_clear(&s->pending);
    s->written = 0;
}

static bool typed_all(const swx_session *s) { return s->written == s->pending.size; }

static bool type_bytes(swx_session *s, const void *bytes, size_t size)
{
    if (swx_buf_append(&s->pending, bytes, size) != SWX_OK) {
        return false;
    }
    flush_pending(s);
    return true;
}

/* ---- beginning a command --------------------------------------------------------------------------------------- */

static void expect_end(swx_session *s, int64_t now, bool at_prompt)
{
    s->state = RUNNING;
    s->found = (candidate){ 0 };
    s->expects_start = at_prompt && s->start_marks;
    s->begun = !s->expects_start;
    if (at_prompt) {
        s->started = false;
        s->base = s->number;
    }
    s->beyond = false;
    s->delivered = s->last_data = now;
    s->readline_seen = false;
    s->notices = 0;
    s->backoff = FIRST_CHECK;
    check_in(s, now, s->backoff);
}

/* The startup script in a brace group, between what makes the prompts ours alone and what puts them back when the
 * script has changed them.  (Bash would report new mail right before a prompt, in the output of any command.) */
static bool type_startup(swx_session *s, const swx_op *op)
{
    static const char head[] = "{\nbuiltin set +H; builtin export -n PS0 PS1 PS2; builtin unset MAILCHECK\n";
    static const char tail[] = "\nbuiltin history -d -1 2>/dev/null || builtin :\n}\n"; /* this group is not the user's */
    return type_bytes(s, head, sizeof(head) - 1) && type_bytes(s, op->typed, op->typed_size) && type_bytes(s, "\n", 1) &&
           swx_shelltext_prompts(&s->pending, &s->fence) == SWX_OK && type_bytes(s, tail, sizeof(tail) - 1);
}

/* In canonical mode the kernel cuts a line that is too long and passes the rest on as if it were whole. */
static bool line_too_long(const swx_session *s, const swx_op *op)
{
    size_t line = 0;
    for (size_t i = 0; i < op->typed_size; i++) {
        line = op->typed[i] == '\n' ? 0 : line + 1;
        if (line > LINE_MAX) {
            return swx_pty_is_canonical(&s->pty);
        }
    }
    return false;
}

static unsigned count_lines(const uint8_t *text, size_t size)
{
    unsigned lines = 0;
    for (const uint8_t *end = text + size; text < end && (text = memchr(text, '\n', (size_t)(end - text))); text++) {
        lines++;
    }
    return lines;
}

/* Whether the first of those who wait can begin now. */
static bool can_begin(const swx_session *s)
{
    const swx_op *op = s->first;
    return op && !op->held && !s->current &&
           (s->state == IDLE || (s->state == RUNNING && !s->arriving && op->kind == SWX_OP_LINE));
}

static void begin_first(swx_session *s, int64_t now)
{
    swx_op *op = s->first;
    s->first = op->link;
    op->link = NULL;
    if (!s->first) {
        s->last = NULL;
    }
    bool at_prompt = s->state == IDLE;
    if (at_prompt && op->kind == SWX_OP_LINE && !op->typed_size) { /* only asks how the last command ended */
        op->typed_out = true;
        finish(s, op, SWX_END_DONE, s->code, true);
        return;
    }
    if (at_prompt && s->loose) {
        swx_pty_forget_input(&s->pty); /* half a line for a program that is gone would be the beginning of this command */
    }
    s->current = op;
    s->hints = at_prompt ? op->hints : s->hints | op->hints;
    s->loose = op->kind == SWX_OP_LINE || s->attached;
    if (s->output.limit == s->output_limit) {
        swx_buf_clear(&s->output);
    } else {
        swx_buf_free(&s->output);
        swx_buf_init(&s->output, s->output_limit);
    }
    restart_output(s);
    expect_end(s, now, at_prompt);
    s->lines = count_lines(op->typed, op->typed_size);
    op->typed_out = true;
    op->base = 0;
    if (op->match) {
        swx_match_reset(op->match);
    }
    if (op->kind == SWX_OP_LINE && line_too_long(s, op)) {
        s->current = NULL;
        op->error = (swx_error){ .status = SWX_ELIMIT, .text = "a line for a terminal in canonical mode has at most 4095 bytes" };
        s->state = at_prompt ? IDLE : RUNNING;
        finish(s, op, SWX_END_SYSTEM, 0, false);
        return;
    }
    bool typed = true;
    if (op->kind == SWX_OP_START) {
        op->deadline = op->step < SWX_NEVER - now ? now + op->step : SWX_NEVER;
        typed = type_startup(s, op);
        op->typed_size = 0;
    }
    if (at_prompt && s->jobs && s->start_marks) { /* lets the shell report jobs that ended meanwhile before we begin */
        typed = type_bytes(s, "\n", 1);
    }
    size_t part = op->typed_size;
    if (op->raw && at_prompt && part > RAW_TAIL) {
        part -= RAW_TAIL;
        s->arriving = true;
        s->backoff = MS / 20;
        check_in(s, now, s->backoff);
        swx_pty_set_raw(&s->pty, true);
    }
    if (!typed || !type_bytes(s, op->typed, part)) {
        s->current = NULL;
        if (s->arriving) {
            s->arriving = false;
            swx_pty_set_raw(&s->pty, false);
        }
        finish(s, op, SWX_END_MEMORY, 0, false);
    }
}

/* Called whenever something went away that others may wait for, and at the end of each call that may have ended something. */
static void begin(swx_session *s, int64_t now)
{
    while (can_begin(s)) {
        begin_first(s, now);
    }
}

/* ---- the challenge --------------------------------------------------------------------------------------------- */

static void type_challenge(swx_session *s, int64_t now)
{
    swx_buf line;
    swx_buf_init(&line, PART_LIMIT);
    s->phase = ASK;
    s->part = 0;
    for (size_t i = 0; i < SWX_COUNT(s->parts); i++) {
        swx_buf_clear(&s->parts[i]);
    }
    s->give_up = now + CHALLENGE_LIMIT;
    s->backoff = FIRST_CHECK;
    s->last_data = now;
    check_in(s, now, s->backoff);
    bool typed = swx_fence_init(&s->fence, NULL) == SWX_OK && swx_shelltext_challenge(&line, &s->fence) == SWX_OK &&
                 type_bytes(s, line.data, line.size);
    swx_buf_free(&line);
    if (!typed) {
        lose(s);
    }
}

static void take_plain(swx_session *s, const uint8_t *bytes, size_t size);

/* What only looked like the beginning of a mark was output: no more comes that could make it one. */
static void take_held(swx_session *s)
{
    size_t size = s->fence.held_size;
    s->fence.held_size = 0;
    take_plain(s, s->fence.held, size);
}

/* The end of a command is in doubt, or our prompts are gone. */
static void challenge(swx_session *s, int64_t now, bool prompt_missing)
{
    if (prompt_missing) {
        take_held(s);
    }
    s->state = CHALLENGE;
    s->facts.challenges++;
    s->attempt = 0;
    s->doubted = s->found.rank;
    s->answered = false;
    s->prompt_missing = prompt_missing;
    s->unexpanded = s->found.rank && s->found.code < 0;
    s->interrupted_once = s->ask_again = false;
    type_challenge(s, now);
}

static void type_restore(swx_session *s, int64_t now)
{
    swx_buf line;
    swx_buf_init(&line, PART_LIMIT);
    s->phase = RESTORE;
    s->attempt++;
    s->found = (candidate){ 0 };
    s->give_up = now + CHALLENGE_LIMIT;
    s->backoff = FIRST_CHECK;
    check_in(s, now, s->backoff);
    /* First the prompts alone; if they do not show, the user's PROMPT_COMMAND may set them each time; if they still do not,
     * they may be readonly. */
    s->guard = s->guard || s->report.no_stderr || s->attempt > 2;
    s->reassert = s->reassert || s->attempt > 1 || (s->prompt_missing && s->lost_prompts > 1);
    swx_restore restore = {
        .code = s->report.code,
        .pipestatus = s->report.pipestatus,
        .last = s->parts[1].data,
        .last_size = s->parts[1].size,
        .prompt_variables = s->unexpanded,
        .readline = s->readline_seen,
        .guard = s->guard,
        .reassert = s->reassert && !s->guard,
    };
    bool typed = swx_shelltext_restore(&line, &s->fence, &restore) == SWX_OK && line.size < 4096 &&
                 type_bytes(s, line.data, line.size);
    swx_buf_free(&line);
    if (!typed) {
        lose(s);
    }
}

/* ---- the end of a command -------------------------------------------------------------------------------------- */

/* Bash reports ended jobs in the output of whatever runs when it notices, mostly right before its prompt.  Where lines
 * look like that, a job of an earlier command is known, and this command has no business with jobs, an empty line asks
 * for one more prompt: only if that many jobs less are left than before the command were the lines bash's own.
 * True: wait for that prompt. */
static bool asks_about_notices(swx_session *s, const candidate *found)
{
    if (s->notices) { /* that prompt is here */
        swx_buf_chop(&s->output, (size_t)(s->output.total - s->notice_end));
        if (s->jobs >= found->jobs + s->notices) {
            size_t size = swx_notice_remove(s->output.data, s->output.size);
            swx_buf_chop(&s->output, s->output.size - size);
        }
        s->notices = 0;
        return false;
    }
    if (!s->jobs || (s->hints & SWX_HINT_JOBS) || s->output.size > NOTICE_LIMIT || swx_buf_dropped(&s->output)) {
        return false;
    }
    s->notices = swx_notice_count(s->output.data, s->output.size);
    s->notice_end = s->output.total;
    if (!s->notices || !type_bytes(s, "\n", 1)) {
        s->notices = 0;
        return false;
    }
    s->number = found->number;
    s->found = (candidate){ 0 };
    s->started = false;
    return true;
}

static bool starts_with(const swx_buf *buf, size_t at, const swx_buf *start)
{
    return start->size && buf->size - at >= start->size && memcmp(buf->data + at, start->data, start->size) == 0;
}

/* What a PS2 and a PS0 that cannot be replaced printed at the output's beginning: one for each further line, then the
 * other. */
static void drop_start(swx_session *s)
{
    size_t at = 0;
    if (s->start_marks || swx_buf_dropped(&s->output)) {
        return;
    }
    for (unsigned i = 1; i < s->lines && starts_with(&s->output, at, &s->parts[4]); i++) {
        at += s->parts[4].size;
    }
    at += starts_with(&s->output, at, &s->parts[3]) ? s->parts[3].size : 0;
    if (at) {
        memmove(s->output.data, s->output.data + at, s->output.size - at);
        swx_buf_chop(&s->output, at);
    }
}

/* After `exec > >(tee log)` and the like. */
static bool stdout_is_pipe(const swx_session *s)
{
    char path[48], target[16];
    snprintf(path, sizeof(path), "/proc/%d/fd/1", (int)s->child.pid);
    ssize_t size = readlink(path, target, sizeof(target));
    return size > 5 && memcmp(target, "pipe:", 5) == 0;
}

/* unread: NULL, or why the shell has not run what was typed. */
static void conclude(swx_session *s, int code, uint32_t jobs, const char *unread, int64_t now)
{
    drop_start(s);
    bool processed = swx_pty_settle_modes(&s->pty, s->hints & SWX_HINT_STTY);
    if (s->hints & SWX_HINT_SETTLE) {
        s->helper = stdout_is_pipe(s);
    }
    s->jobs = jobs;
    s->code = code;
    s->state = IDLE;
    s->check = SWX_NEVER;
    s->facts.commands++;
    swx_op *op = s->current;
    s->current = NULL;
    if (op) {
        op->processed = processed;
        if (unread) {
            op->error = (swx_error){ .status = SWX_EINVAL, .text = unread };
        }
        finish(s, op, unread ? SWX_END_SYSTEM : SWX_END_DONE, code, true);
    } else if (s->interrupts) { /* nobody else waits for this output */
        op = s->interrupts;
        s->interrupts = op->link;
        op->link = NULL;
        op->processed = processed;
        finish(s, op, SWX_END_DONE, code, true);
    }
    finish_list(s, &s->interrupts, SWX_END_DONE, code);
    begin(s, now);
}

static void conclude_from_mark(swx_session *s, int64_t now)
{
    candidate found = s->found;
    bool own = (s->hints & SWX_HINT_PROMPT) && !s->loose; /* PS1 may hold a mark by now that was expanded before */
    if (found.conflict || found.altered || found.code < 0 || s->beyond || own) {
        swx_buf_chop(&s->output, (size_t)(s->output.total - found.at));
        challenge(s, now, false);
        return;
    }
    bool missed_start = s->expects_start && !s->begun && found.number > s->number;
    swx_buf_chop(&s->output, (size_t)(s->output.total - found.at));
    s->number = found.number ? found.number : s->number;
    s->lost_prompts = 0;
    if (missed_start && ++s->start_misses > 1) {
        s->start_marks = false; /* PS0 cannot be kept: go on without */
        missed_start = false;
    }
    if (missed_start || s->readline_seen) {
        challenge(s, now, false);
        return;
    }
    if (!s->expects_start || s->begun) {
        s->start_misses = 0;
    }
    if (asks_about_notices(s, &found)) {
        check_in(s, now, s->backoff);
        return;
    }
    conclude(s, found.code, found.jobs, NULL, now);
}

/* What the user's own prompt printed at the output's end: all of it if it holds no mark of ours, else what stands before
 * the mark. */
static void drop_prompt(swx_session *s)
{
    static const char head[] = "\033]7733;";
    const swx_buf *prompt = &s->parts[2];
    size_t size = prompt->size;
    for (size_t i = 0; !s->prompt_missing && i < size; i++) {
        if (size - i >= sizeof(head) - 1 && memcmp(prompt->data + i, head, sizeof(head) - 1) == 0) {
            size = i;
        }
    }
    if (size && !swx_buf_dropped(prompt) && swx_buf_ends_with(&s->output, prompt->data, size)) {
        swx_buf_chop(&s->output, size);
    }
}

/* How many commands the shell has read since ours was typed, but for the question and for what put the prompts back.
 * -1: it does not tell. */
static int64_t commands_read(const swx_session *s)
{
    if (s->loose || !s->found.rank || !s->found.number) {
        return -1;
    }
    return (int64_t)(s->found.number - s->base) - 1 - s->attempt;
}

/* The answer came, prompts and state are back. */
static void conclude_challenge(swx_session *s, int64_t now)
{
    const char *unread = NULL;
    int64_t count = commands_read(s);
    if (count > 1 && s->beyond && s->doubted == 2) { /* ours and somebody else's: whose exit code is it? */
        lose(s);
        return;
    }
    if (count == 0 && !s->doubted && s->expects_start && !s->begun) {
        unread = "the shell did not run what was typed: it waited for more of it, or something else read the terminal";
    }
    drop_prompt(s);
    s->number = s->found.number ? s->found.number : s->number;
    /* A prompt that is right but for PS0 says that PS0 cannot be kept. */
    s->start_marks = !s->guard && !s->blind && !s->found.altered && s->start_misses < 2;
    s->readline_seen = false;
    for (unsigned i = 0; i < LOOKS_AT_ONCE && !has_evidence(s); i++) { /* another bash in the same process */
        if (swx_kernel_learn(&s->kernel) != SWX_MORE) {
            break;
        }
    }
    conclude(s, s->report.code, s->found.rank ? s->found.jobs : s->jobs, unread, now);
}

/* ---- is the shell at its prompt? ------------------------------------------------------------------------------- */

static void read_some(swx_session *s, unsigned reads, int64_t now, bool *more);

typedef enum { NOT_YET, AT_PROMPT, NO_EVIDENCE } where;

static where look_at_shell(swx_session *s, unsigned looks)
{
    if (!typed_all(s) || !swx_pty_input_consumed(&s->pty)) {
        return NOT_YET;
    }
    for (unsigned i = 0; i < looks; i++) {
        switch (swx_kernel_look(&s->kernel)) {
        case SWX_SHELL_PROMPT:
            return AT_PROMPT;
        case SWX_SHELL_READLINE:
            if (swx_pty_foreground(&s->pty) != s->child.pid) {
                return NOT_YET;
            }
            s->readline_seen = true;
            return AT_PROMPT;
        case SWX_SHELL_UNKNOWN:
            return NO_EVIDENCE;
        case SWX_SHELL_ELSEWHERE:
            break;
        }
    }
    return NOT_YET;
}

/* Everything that was written before the shell came to its prompt is in the buffers of the kernel, and a read that
 * finds nothing has flushed them.  True when all of it is here. */
static bool drained(swx_session *s, int64_t now)
{
    bool more = true;
    state was = s->state;
    challenge_phase phase = s->phase;
    for (unsigned round = 0; more && round < 16; round++) {
        read_some(s, READS_PER_CALL, now, &more);
    }
    return !more && s->state == was && s->phase == phase;
}

static void try_again_later(swx_session *s, int64_t now)
{
    check_in(s, now, s->backoff);
    s->backoff = earlier(s->backoff * 2, LONGEST_CHECK);
}

static void take_output(swx_session *s, const uint8_t *bytes, size_t size);
static swx_op *matching(const swx_session *s);

/* The command was read and runs, but the START mark did not come: somebody has changed PS0.  What has arrived so far is
 * taken for its output. */
static void begin_without_mark(swx_session *s)
{
    s->begun = true;
    s->expects_start = false;
    swx_op *op = matching(s);
    if (!op) {
        return;
    }
    swx_buf so_far = s->output;
    op->base = 0;
    swx_span spans[3];
    swx_buf_init(&s->output, so_far.limit);
    swx_buf_spans(&so_far, spans);
    for (size_t i = 0; i < SWX_COUNT(spans); i++) {
        take_output(s, spans[i].bytes, spans[i].size);
    }
    if (matching(s) == op && s->output.size == so_far.size) {
        s->output.total += swx_buf_dropped(&so_far); /* head and tail lie as they did */
    }
    swx_buf_free(&so_far);
}

static void settle_running(swx_session *s, int64_t now, bool fresh)
{
    /* Without a mark, readline's wait may be a program's of the same process: only a mark makes it a prompt. */
    where at = look_at_shell(s, fresh ? LOOKS_AT_ONCE : 1);
    if (at == AT_PROMPT && s->readline_seen && !s->found.rank) {
        s->readline_seen = false;
        at = NOT_YET;
    }
    if (at == AT_PROMPT || (at == NO_EVIDENCE && s->found.rank)) {
        if (!drained(s, now)) {
            if (s->state == RUNNING) {
                check_in(s, now, MS / 10);
            }
            return;
        }
        if (s->helper && now - s->last_data < CALM) {
            check_in(s, now, CALM);
            return;
        }
        if (s->found.rank) {
            conclude_from_mark(s, now);
        } else {
            s->lost_prompts++;
            challenge(s, now, true);
        }
        return;
    }
    if (fresh && s->found.rank) { /* the shell is on its way to its read */
        s->backoff = MS / 20;
    }
    if (!fresh && !s->begun && at == NOT_YET && now - s->delivered > START_GRACE && typed_all(s) &&
        swx_pty_input_consumed(&s->pty)) {
        begin_without_mark(s);
    }
    try_again_later(s, now);
}

static void settle_challenge(swx_session *s, int64_t now)
{
    if (s->phase == ASK) { /* the answer's last mark moves on; without it the line was not understood */
        where at = look_at_shell(s, 1);
        if (at == AT_PROMPT && now - s->last_data > 20 * MS && drained(s, now) && s->phase == ASK) {
            if (s->ask_again) {
                s->ask_again = false;
                type_challenge(s, now);
                return;
            }
            if (s->interrupted_once) {
                lose(s);
                return;
            }
            s->interrupted_once = s->ask_again = true; /* perhaps the shell waits for the rest of a command */
            swx_pty_signal(&s->pty, SIGINT, NULL);
            s->last_data = now;
        }
        if (s->state == CHALLENGE) {
            try_again_later(s, now);
        }
        return;
    }
    where at = look_at_shell(s, LOOKS_AT_ONCE);
    bool evident = at == AT_PROMPT || (at == NO_EVIDENCE && (s->found.rank || now - s->last_data > 20 * MS));
    if (!evident || !drained(s, now)) {
        if (s->state == CHALLENGE) {
            try_again_later(s, now);
        }
        return;
    }
    if (s->phase == AWAIT_PROMPT) {
        type_restore(s, now);
    } else if (s->found.rank || s->blind || s->attempt >= CHALLENGE_ATTEMPTS) {
        s->blind = !s->found.rank;
        conclude_challenge(s, now);
    } else {
        type_restore(s, now); /* the prompt does not show: mark the end another way */
    }
}

/* Of a command that is typed in raw mode all but the last line has to be read before the terminal is itself again; the
 * shell waits for that line then. */
static void settle_arriving(swx_session *s, int64_t now)
{
    where at = look_at_shell(s, LOOKS_AT_ONCE);
    if (at == NOT_YET) {
        check_in(s, now, s->backoff);
        s->backoff = earlier(s->backoff * 2, 2 * MS);
        return;
    }
    s->arriving = false;
    s->delivered = now;
    s->backoff = FIRST_CHECK;
    check_in(s, now, s->backoff);
    swx_pty_set_raw(&s->pty, false);
    if (!type_bytes(s, "}\n", RAW_TAIL)) {
        lose(s);
    }
}

static void become_ready(swx_session *s, int64_t now)
{
    s->state = IDLE;
    s->start_marks = true;
    s->facts.kernel_proof = has_evidence(s);
    swx_buf_clear(&s->output);
    begin(s, now);
    if (s->state == IDLE) {
        finish_list(s, &s->interrupts, SWX_END_DONE, 0);
    }
}

static void settle_starting(swx_session *s, int64_t now)
{
    if (!s->found.rank) {
        check_in(s, now, LONGEST_CHECK);
        return;
    }
    s->learn_until = s->learn_until ? s->learn_until : now + LEARN_LIMIT;
    for (unsigned i = 0; i < LOOKS_AT_ONCE; i++) {
        swx_status status = swx_kernel_learn(&s->kernel);
        if (status != SWX_MORE || now > s->learn_until) {
            s->number = s->found.number;
            become_ready(s, now);
            return;
        }
    }
    check_in(s, now, MS / 20);
}

static void settle(swx_session *s, int64_t now, bool fresh)
{
    switch (s->state) {
    case STARTING:
        settle_starting(s, now);
        break;
    case RUNNING:
        if (s->arriving) {
            settle_arriving(s, now);
        } else if (fresh ? s->found.rank > 0 : (s->found.rank > 0 || has_evidence(s))) {
            settle_running(s, now, fresh);
        } else if (!fresh) {
            check_in(s, now, LONGEST_CHECK);
        }
        break;
    case CHALLENGE:
        settle_challenge(s, now);
        break;
    case IDLE:
        s->check = SWX_NEVER;
        begin(s, now);
        break;
    default:
        s->check = SWX_NEVER;
        break;
    }
}

/* ---- what the terminal says ------------------------------------------------------------------------------------ */

/* Whose output it is that comes now: of the running command's operation, else of the first interrupt that waits for its end. */
static swx_op *claimant(const swx_session *s) { return s->current ? s->current : s->interrupts; }

static void unlink_claimant(swx_session *s)
{
    if (s->current) {
        s->current = NULL;
    } else {
        swx_op *op = s->interrupts;
        s->interrupts = op->link;
        op->link = NULL;
    }
}

static void take_hit(swx_session *s, swx_op *op, swx_hit hit)
{
    unlink_claimant(s);
    hit.start += op->base;
    hit.end += op->base;
    op->hit = hit;
    if (hit.start <= s->output.total) {
        swx_buf_chop(&s->output, (size_t)(s->output.total - hit.start));
    }
    finish(s, op, SWX_END_MATCHED, 0, true);
}

/* The operation whose patterns the output is searched for. */
static swx_op *matching(const swx_session *s)
{
    swx_op *op = claimant(s);
    return op && op->match && (s->begun || !s->expects_start) ? op : NULL;
}

/* Answers to what a program may ask its terminal (ECMA-48 DSR and DA), so that none waits for ever. */
static void answer_queries(swx_session *s, const uint8_t *bytes, size_t size)
{
    if (s->attached || s->arriving) { /* a person's terminal answers; and a half-typed command is no place for it */
        return;
    }
    for (size_t i = 0; i < size; i++) {
        uint8_t byte = bytes[i];
        if (byte == 0x1b) {
            s->query = 1;
        } else if (s->query == 0) {
            return; /* a span without an escape at its beginning has none at all */
        } else if (s->query == 1) {
            s->query = byte == '[' ? 2 : 0;
        } else if (byte >= '0' && byte <= '9' && s->query < 2 + sizeof(s->query_text)) {
            s->query_text[s->query++ - 2] = (char)byte;
        } else {
            size_t digits = s->query - 2;
            int value = digits == 1 ? s->query_text[0] - '0' : digits ? -1 : 0;
            const char *answer = byte == 'n' && value == 6   ? "\033[1;1R"
                                 : byte == 'n' && value == 5 ? "\033[0n"
                                 : byte == 'c' && value == 0 ? "\033[?1;2c"
                                                             : NULL;
            s->query = 0;
            if (answer && !swx_pty_is_canonical(&s->pty)) {
                type_bytes(s, answer, strlen(answer));
            }
        }
    }
}

/* Output was lost, or was not searched: whoever waits for it is told, and nobody gets the rest as if it were all. */
static void run_out_of_memory(swx_session *s)
{
    swx_op *op = claimant(s);
    if (op) {
        unlink_claimant(s);
        finish(s, op, SWX_END_MEMORY, 0, true);
    }
    swx_buf_free(&s->output);
    restart_output(s);
}

static void take_output(swx_session *s, const uint8_t *bytes, size_t size)
{
    while (size) {
        swx_op *op = matching(s);
        size_t part = size;
        swx_hit hit;
        swx_status status = SWX_MORE;
        if (op) {
            status = swx_match_feed(op->match, bytes, size, &part, &hit);
            part = status == SWX_ENOMEM ? size : part;
        }
        if (!claimant(s)) {
            s->facts.late += part;
        }
        bool kept = swx_buf_append(&s->output, bytes, part) == SWX_OK;
        bytes += part;
        size -= part;
        if (!kept || status == SWX_ENOMEM) {
            run_out_of_memory(s);
        } else if (status == SWX_OK) {
            take_hit(s, op, hit);
        }
    }
}

static void take_plain(swx_session *s, const uint8_t *bytes, size_t size)
{
    switch (s->state) {
    case RUNNING:
        answer_queries(s, bytes, size);
        take_output(s, bytes, size);
        break;
    case CHALLENGE:
        if (s->phase == ASK) {
            if (swx_buf_append(&s->parts[s->part], bytes, size) != SWX_OK) {
                lose(s); /* half of the answer must not be typed */
            }
        }
        break;
    case STARTING:
        break;
    default:
        s->facts.late += size;
        break;
    }
}

static void take_start(swx_session *s)
{
    if (s->state != RUNNING || s->begun) {
        return;
    }
    s->begun = s->started = true;
    s->found = (candidate){ 0 };
    s->facts.late += s->output.total;
    swx_buf_clear(&s->output);
    restart_output(s);
    swx_op *op = s->current;
    if (op) {
        op->taken = 0;
        op->base = 0;
        if (op->match) {
            swx_match_reset(op->match);
        }
    }
}

static int rank_of(const swx_session *s, const swx_mark *mark)
{
    if (mark->kind == SWX_MARK_GUARD) {
        return s->guard ? 2 : 0;
    }
    if (s->state == STARTING || s->state == CHALLENGE) {
        return 2;
    }
    if (mark->number == s->number) {
        return s->started ? 0 : s->loose ? 2 : 1;
    }
    return mark->number == s->number + 1 || (s->loose && mark->number > s->number) ? 2 : 0;
}

static void take_prompt(swx_session *s, const swx_mark *mark)
{
    int rank = rank_of(s, mark);
    candidate *found = &s->found;
    s->beyond = s->beyond || (s->state == RUNNING && !s->loose && mark->number > s->number + 1);
    if ((s->state != RUNNING && s->state != STARTING && !(s->state == CHALLENGE && s->phase == RESTORE)) || !rank ||
        rank < found->rank) {
        return;
    }
    bool again = rank == found->rank && (!s->loose || mark->number == found->number);
    bool conflict = again && (found->conflict || found->code != mark->code);
    bool altered = mark->kind == SWX_MARK_PROMPT && mark->code >= 0 &&
                   (mark->ps1_size != s->fence.ps1_size || (s->start_marks && mark->ps0_size != s->fence.ps0_size));
    if (mark->kind == SWX_MARK_GUARD) {
        conflict = found->rank && (found->conflict || found->code != mark->code);
    }
    *found = (candidate){ .rank = rank,
                          .code = mark->code,
                          .conflict = conflict,
                          .altered = altered,
                          .number = mark->number,
                          .jobs = mark->jobs,
                          .at = s->output.total };
}

static void take_mark(swx_session *s, const swx_mark *mark, int64_t now)
{
    switch (mark->kind) {
    case SWX_MARK_START:
        take_start(s);
        break;
    case SWX_MARK_PROMPT:
    case SWX_MARK_GUARD:
        take_prompt(s, mark);
        break;
    case SWX_MARK_REPORT:
        if (s->state == CHALLENGE && s->phase == ASK) {
            if (!s->answered) {
                s->report = *mark;
                s->report.code = mark->code < 0 ? 0 : mark->code;
                s->answered = true;
            }
            s->part = 1;
        }
        break;
    case SWX_MARK_VALUE:
        s->part += s->part && s->part < PARTS - 1;
        break;
    case SWX_MARK_END:
        if (s->state == CHALLENGE && s->phase == ASK && s->answered) {
            s->report.no_stderr = mark->no_stderr;
            s->phase = AWAIT_PROMPT;
            s->backoff = MS / 20;
            check_in(s, now, 0);
        }
        break;
    }
}

static void take(swx_session *s, const uint8_t *bytes, size_t size, int64_t now)
{
    const uint8_t *plain;
    size_t plain_size;
    swx_mark mark;
    s->last_data = now;
    for (;;) {
        switch (swx_fence_next(&s->fence, &bytes, &size, &plain, &plain_size, &mark)) {
        case SWX_FENCE_MORE:
            return;
        case SWX_FENCE_PLAIN:
            take_plain(s, plain, plain_size);
            break;
        case SWX_FENCE_MARK:
            take_mark(s, &mark, now);
            break;
        }
    }
}

/* *more: the last read still brought something. */
static void read_some(swx_session *s, unsigned reads, int64_t now, bool *more)
{
    uint8_t bytes[READ_SIZE];
    *more = false;
    for (unsigned i = 0; i < reads; i++) {
        ssize_t size = read(s->pty.master, bytes, sizeof(bytes));
        if (size < 0 && errno == EINTR) {
            continue;
        }
        if (size <= 0) {
            *more = false;
            return;
        }
        *more = true;
        take(s, bytes, (size_t)size, now);
    }
}

/* What is there now.  A short read says that there is no more at this moment; a further one would only make the kernel
 * flush its queues to say the same.  Whoever needs to be sure asks drained(). */
static bool read_available(swx_session *s, int64_t now)
{
    uint8_t bytes[READ_SIZE];
    for (unsigned i = 0; i < READS_PER_CALL; i++) {
        ssize_t size = read(s->pty.master, bytes, sizeof(bytes));
        if (size < 0 && errno == EINTR) {
            continue;
        }
        if (size <= 0) {
            return false;
        }
        take(s, bytes, (size_t)size, now);
        if (size < SHORT_READ) {
            return false;
        }
    }
    return true;
}

static void tell_news(swx_session *s)
{
    swx_op *op = s->current;
    if (op && op->stream && op->news && s->state == RUNNING && (s->begun || !s->expects_start) &&
        op->taken < s->output.total) {
        op->news(op);
    }
}

bool swx_session_readable(swx_session *s, int64_t now)
{
    if (s->state == CLOSED) {
        return false;
    }
    bool more = read_available(s, now);
    if (s->found.rank || s->state == CHALLENGE) {
        settle(s, now, true);
    } else if (s->state == RUNNING) {
        s->backoff = FIRST_CHECK; /* a prompt without a mark would come right behind the output */
        s->check = earlier(s->check, now + s->backoff);
    }
    begin(s, now);
    tell_news(s);
    return more;
}

void swx_session_writable(swx_session *s, int64_t now)
{
    (void)now;
    if (s->state != CLOSED) {
        flush_pending(s);
    }
}

/* ---- interrupts ------------------------------------------------------------------------------------------------ */

static bool runs_same_program(const swx_session *s)
{
    char path[48];
    struct stat program;
    snprintf(path, sizeof(path), "/proc/%d/exe", (int)s->child.pid);
    return stat(path, &program) == 0 && program.st_ino == s->program.st_ino && program.st_dev == s->program.st_dev;
}

/* Bash 5.2 does not survive a SIGINT that comes between a command of its own and the fork for the next one: it goes back
 * to its prompt, the child takes the terminal after that, and the shell's next read fails with EIO, which ends it.
 * A shell that computes gets a moment to come past that point; one that sleeps in a system call is not there. */
static bool may_be_forking(const swx_session *s)
{
    return has_evidence(s) && swx_kernel_computes(&s->kernel);
}

/* As ^C: to the foreground group.  To a group of programs directly, so that it cannot hit the shell when they end in this
 * very moment; with the terminal's own authority where they belong to another user. */
static void signal_foreground(const swx_session *s, pid_t group)
{
    if (group <= 0 || group == s->child.pid || (kill(-group, SIGINT) != 0 && errno == EPERM)) {
        swx_pty_signal(&s->pty, SIGINT, NULL);
    }
}

/* One attempt.  False: nothing is left to try. */
static bool interrupt_once(swx_session *s, swx_op *op, int64_t now)
{
    bool arriving = !typed_all(s) || (s->expects_start && !s->begun);
    if (s->arriving || (arriving && now - s->delivered < DELIVERY_GRACE)) {
        op->next = now + 2 * MS; /* the rest of a half-read command would run as a command of its own */
        return !s->arriving || now - op->since < ARRIVAL_LIMIT;
    }
    pid_t group = swx_pty_foreground(&s->pty);
    if (group == s->child.pid && may_be_forking(s) && now - op->since < BUSY_GRACE) {
        op->next = now + BUSY_LOOK;
        return true;
    }
    if (op->tries) {
        op->tries--;
        signal_foreground(s, group);
        op->next = op->since = now + op->step;
        return true;
    }
    if (!op->killed) {
        op->killed = true;
        if (group > 0 && group != s->child.pid) {
            kill(-group, SIGKILL);
        }
        swx_pty_signal(&s->pty, SIGINT, NULL);
        op->next = now + (op->step > KILL_GRACE ? op->step : KILL_GRACE);
        return true;
    }
    /* A fresh bash in the place of ours (`exec bash`) waits for a key and knows nothing of our marks: tell it. */
    if (group == s->child.pid && s->state == RUNNING && swx_kernel_look(&s->kernel) == SWX_SHELL_READLINE &&
        runs_same_program(s)) {
        op->next = now + CHALLENGE_LIMIT;
        s->readline_seen = true;
        s->kernel.buffer = 0;
        challenge(s, now, true);
        return true;
    }
    return false;
}

/* How long an interrupt lets the shell be asked how the command ended: about as long as it would try by itself. */
static int64_t question_patience(const swx_op *op)
{
    return op->step * (op->tries < 8 ? op->tries : 8) + 2 * KILL_GRACE;
}

static void drive_interrupts(swx_session *s, int64_t now)
{
    for (swx_op **at = &s->interrupts; *at;) {
        swx_op *op = *at;
        if (op->next <= now && (s->state == CHALLENGE || s->state == STARTING)) {
            op->next = now + 5 * MS; /* the command has ended, and the shell is being asked how; or it would die of it */
        }
        bool tries = op->next > now || interrupt_once(s, op, now);
        if (s->state == CHALLENGE && now - op->since > question_patience(op)) {
            tries = false; /* it does not answer: nobody waits for that as long as for a command */
        }
        if (s->state == LOST) {
            return; /* all have ended */
        }
        if (!tries) {
            *at = op->link;
            op->link = NULL;
            finish(s, op, SWX_END_TIMEOUT, 0, false);
        } else {
            at = &op->link;
        }
    }
}

/* ---- death and closing ----------------------------------------------------------------------------------------- */

void swx_session_ended(swx_session *s, int64_t now)
{
    if (s->state == CLOSED || s->state == DEAD || !swx_child_ended(&s->child)) {
        return;
    }
    bool more = true;
    for (unsigned round = 0; more && round < 64; round++) {
        read_some(s, READS_PER_CALL, now, &more);
    }
    take_held(s);
    s->facts.dead = true;
    s->facts.wait_status = s->child.wait_status;
    s->check = SWX_NEVER;
    if (s->unwatch) { /* it stays open, and readable for ever */
        s->unwatch(s->owner, s->child.pidfd);
    }
    if (s->state == CLOSING) {
        s->close_step = now;
        return;
    }
    s->state = DEAD;
    finish_all(s, SWX_END_DIED, swx_child_code(&s->child));
}

static void close_finally(swx_session *s)
{
    s->state = CLOSED;
    s->facts.closed = true;
    if (s->unwatch) {
        s->unwatch(s->owner, s->pty.master);
        s->unwatch(s->owner, s->child.pidfd);
    }
    swx_kernel_close(&s->kernel);
    swx_child_close(&s->child);
    swx_pty_close(&s->pty);
    swx_buf_free(&s->output);
    swx_buf_free(&s->pending);
    s->written = 0;
    finish_list(s, &s->closer, SWX_END_DONE, 0);
}

static void start_closing(swx_session *s, int64_t now)
{
    finish_all(s, SWX_END_CLOSED, 0);
    if (s->state == CLOSING || s->state == CLOSED) {
        return;
    }
    pid_t group = swx_pty_foreground(&s->pty);
    s->state = CLOSING;
    s->check = SWX_NEVER;
    s->close_step = now;
    s->sweeps = 0;
    if (!swx_child_ended(&s->child)) { /* as a terminal does that is closed */
        if (group > 0 && group != s->child.pid) {
            kill(-group, SIGHUP);
            kill(-group, SIGCONT);
        }
        swx_child_signal(&s->child, SIGHUP);
        swx_child_signal(&s->child, SIGCONT);
        s->close_step = now + CLOSE_LOOK;
        s->close_limit = now + (has_evidence(s) ? CLOSE_GRACE : 10 * CLOSE_LOOK);
    }
}

static void drive_closing(swx_session *s, int64_t now)
{
    bool ended = swx_child_ended(&s->child);
    if (!ended && now < s->close_limit && swx_kernel_look(&s->kernel) == SWX_SHELL_ELSEWHERE) {
        s->close_step = now + CLOSE_LOOK; /* not back at its prompt: it is on its way out */
        return;
    }
    if (!ended) {
        swx_child_signal(&s->child, SIGKILL);
    }
    long found = swx_child_kill_marked(&s->child.mark, 1);
    s->sweeps++;
    if ((ended && found <= 0) || s->sweeps > CLOSE_SWEEPS) {
        close_finally(s);
    } else {
        s->close_step = now + (s->sweeps < 20 ? MS : 10 * MS);
    }
}

/* ---- deadlines ------------------------------------------------------------------------------------------------- */

static int64_t quiet_deadline(const swx_session *s, const swx_op *op)
{
    return op->quiet && op == s->current ? s->last_data + op->quiet : SWX_NEVER;
}

int64_t swx_session_deadline(const swx_session *s)
{
    int64_t due = SWX_NEVER;
    if (s->state == CLOSED) {
        return due;
    }
    if (s->state == CLOSING) {
        return s->close_step;
    }
    due = earlier(due, s->check);
    if (s->state == STARTING || s->state == CHALLENGE) {
        due = earlier(due, s->give_up);
    }
    if (s->current) {
        due = earlier(due, earlier(s->current->deadline, quiet_deadline(s, s->current)));
    }
    for (const swx_op *op = s->first; op; op = op->link) {
        due = earlier(due, op->deadline);
    }
    for (const swx_op *op = s->interrupts; op; op = op->link) {
        due = earlier(due, op->next);
    }
    return due;
}

static void expire_waiting(swx_session *s, int64_t now)
{
    swx_op *before = NULL;
    for (swx_op *op = s->first; op;) {
        swx_op *after = op->link;
        if (op->deadline <= now) {
            *(before ? &before->link : &s->first) = after;
            if (s->last == op) {
                s->last = before;
            }
            op->link = NULL;
            finish(s, op, SWX_END_TIMEOUT, 0, false);
        } else {
            before = op;
        }
        op = after;
    }
}

void swx_session_due(swx_session *s, int64_t now)
{
    if (s->state == CLOSED) {
        return;
    }
    if (s->child.pidfd < 0) {
        swx_session_ended(s, now);
    }
    if (s->state == CLOSING) {
        if (s->close_step <= now) {
            drive_closing(s, now);
        }
        return;
    }
    if (s->check <= now) {
        s->check = SWX_NEVER;
        settle(s, now, false);
    }
    if (s->state == STARTING && s->give_up <= now) {
        lose(s);
    }
    if (s->state == CHALLENGE && s->give_up <= now) {
        lose(s);
    }
    swx_op *op = s->current;
    if (op && (op->deadline <= now || quiet_deadline(s, op) <= now)) {
        bool more = false; /* what is there came in time */
        read_some(s, READS_PER_CALL, now, &more);
        if (s->found.rank) {
            settle(s, now, true);
        }
        if (s->current == op && (op->deadline <= now || quiet_deadline(s, op) <= now)) {
            s->current = NULL;
            finish(s, op, op->deadline <= now ? SWX_END_TIMEOUT : SWX_END_QUIET, 0, true);
        }
    }
    expire_waiting(s, now);
    drive_interrupts(s, now);
    begin(s, now);
}

/* ---- operations ------------------------------------------------------------------------------------------------ */

static void push(swx_op **list, swx_op *op)
{
    while (*list) {
        list = &(*list)->link;
    }
    *list = op;
}

static void submit_interrupt(swx_session *s, swx_op *op, int64_t now)
{
    if (s->state == IDLE) {
        finish(s, op, SWX_END_DONE, 0, false);
        return;
    }
    op->next = op->since = now;
    op->killed = false;
    op->base = s->output.total;
    if (op->match) {
        swx_match_reset(op->match);
    }
    push(&s->interrupts, op);
    drive_interrupts(s, now);
}

void swx_session_submit(swx_session *s, swx_op *op, int64_t now)
{
    op->end = SWX_END_NONE;
    op->link = NULL;
    op->taken = 0;
    op->typed_out = op->processed = false;
    if (op->kind == SWX_OP_CLOSE) {
        push(&s->closer, op);
        start_closing(s, now);
        if (s->state == CLOSED) {
            finish_list(s, &s->closer, SWX_END_DONE, 0);
        }
        return;
    }
    switch (s->state) {
    case DEAD:
        finish(s, op, SWX_END_DIED, swx_child_code(&s->child), false);
        return;
    case LOST:
        finish(s, op, SWX_END_LOST, 0, false);
        return;
    case CLOSING:
    case CLOSED:
        finish(s, op, SWX_END_CLOSED, 0, false);
        return;
    default:
        break;
    }
    if (op->kind == SWX_OP_INTERRUPT) {
        submit_interrupt(s, op, now);
        return;
    }
    push(&s->first, op);
    s->last = op;
    begin(s, now);
}

void swx_session_release(swx_session *s, swx_op *op, int64_t now)
{
    op->held = false;
    if (op->end == SWX_END_NONE) {
        begin(s, now);
    }
}

static bool unlink_op(swx_op **list, const swx_op *op)
{
    for (; *list; list = &(*list)->link) {
        if (*list == op) {
            *list = op->link;
            return true;
        }
    }
    return false;
}

void swx_session_cancel(swx_session *s, swx_op *op)
{
    if (op->end != SWX_END_NONE) {
        return;
    }
    if (s->current == op) {
        s->current = NULL;
        finish(s, op, SWX_END_CANCELLED, 0, true);
    } else if (unlink_op(&s->first, op) || unlink_op(&s->interrupts, op) || unlink_op(&s->closer, op)) {
        s->last = s->first;
        while (s->last && s->last->link) {
            s->last = s->last->link;
        }
        op->link = NULL;
        finish(s, op, SWX_END_CANCELLED, 0, false);
    }
    if (can_begin(s)) {
        s->check = 0; /* it was what the others waited for */
    }
}

size_t swx_session_take(swx_session *s, swx_op *op, uint8_t *out, size_t room)
{
    const swx_buf *from = op->end == SWX_END_NONE ? &s->output : &op->output;
    swx_span spans[3];
    size_t copied = 0;
    if (op->end == SWX_END_NONE && (op != s->current || (s->expects_start && !s->begun))) {
        return 0;
    }
    swx_buf_spans(from, spans);
    uint64_t at = 0, dropped = swx_buf_dropped(from);
    for (size_t i = 0; i < SWX_COUNT(spans) && copied < room; i++) {
        if (i == 1) {
            at += dropped;
        }
        uint64_t skip = op->taken > at ? op->taken - at : 0;
        if (skip < spans[i].size) {
            size_t part = spans[i].size - (size_t)skip;
            part = part < room - copied ? part : room - copied;
            memcpy(out + copied, spans[i].bytes + skip, part);
            copied += part;
            op->taken = at + skip + part;
        }
        at += spans[i].size;
    }
    return copied;
}

void swx_session_attach(swx_session *s, bool attached)
{
    s->attached = attached;
    s->query = 0;
    s->loose = s->loose || attached;
}

swx_status swx_session_type(swx_session *s, const uint8_t *bytes, size_t size, int64_t now)
{
    (void)now;
    if (s->state == DEAD || s->state == CLOSING || s->state == CLOSED || s->state == LOST) {
        return SWX_ECLOSED;
    }
    if (s->state != RUNNING || s->arriving) {
        return SWX_EBUSY;
    }
    s->loose = true;
    return type_bytes(s, bytes, size) ? SWX_OK : SWX_ENOMEM;
}

void swx_session_set_unwatch(swx_session *s, void (*unwatch)(void *owner, int fd), void *owner)
{
    s->unwatch = unwatch;
    s->owner = owner;
}

swx_status swx_session_resize(swx_session *s, unsigned rows, unsigned columns, swx_error *err)
{
    return s->pty.master < 0 ? SWX_ECLOSED : swx_pty_resize(&s->pty, rows, columns, err);
}

/* ---- birth and end of the object ------------------------------------------------------------------------------- */

static size_t count_strings(char *const *list)
{
    size_t count = 0;
    while (list && list[count]) {
        count++;
    }
    return count;
}

/* The prompts come in the environment, so that the first prompt is the first mark and nothing has to be typed. */
static swx_status start_shell(swx_session *s, const swx_session_config *config, swx_error *err)
{
    char ps0[SWX_FENCE_TEXT + 4] = "PS0=", ps1[SWX_FENCE_TEXT + 4] = "PS1=", ps2[] = "PS2=";
    char *argv[] = { (char[]){ "bash" }, (char[]){ "--noprofile" }, (char[]){ "--norc" }, (char[]){ "--noediting" },
                     (char[]){ "-i" }, NULL };
    size_t count = count_strings(config->environment);
    char **environment = swx_malloc((count + 4) * sizeof(*environment));
    if (!environment) {
        return swx_fail(err, SWX_ENOMEM, "out of memory");
    }
    swx_fence_ps0(&s->fence, ps0 + 4);
    swx_fence_ps1(&s->fence, ps1 + 4);
    if (count) {
        memcpy(environment, config->environment, count * sizeof(*environment));
    }
    environment[count] = ps0;
    environment[count + 1] = ps1;
    environment[count + 2] = ps2;
    environment[count + 3] = NULL;
    swx_spawn spawn = { .file = config->shell,
                        .argv = argv,
                        .environment = environment,
                        .directory = config->directory,
                        .terminal = s->pty.path };
    swx_status status = swx_child_start(&s->child, &spawn, err);
    swx_free(environment);
    return status;
}

swx_status swx_session_new(swx_session **out, const swx_session_config *config, int64_t now, swx_error *err)
{
    *out = NULL;
    swx_session *s = swx_calloc(1, sizeof(*s));
    if (!s) {
        return swx_fail(err, SWX_ENOMEM, "out of memory");
    }
    s->pty.master = s->pty.slave = s->kernel.fd = s->child.pidfd = -1;
    s->output_limit = config->output_limit;
    swx_buf_init(&s->output, s->output_limit);
    swx_buf_init(&s->pending, SIZE_MAX / 2);
    for (size_t i = 0; i < SWX_COUNT(s->parts); i++) {
        swx_buf_init(&s->parts[i], PART_LIMIT);
    }
    s->check = SWX_NEVER;
    s->give_up = now + SHELL_START_LIMIT;
    s->backoff = FIRST_CHECK;
    swx_status status = swx_pty_open(&s->pty, config->rows, config->columns, err);
    if (status == SWX_OK) {
        status = swx_fence_init(&s->fence, err);
    }
    if (status == SWX_OK) {
        status = start_shell(s, config, err);
    }
    if (status != SWX_OK) {
        swx_session_free(s);
        return status;
    }
    swx_kernel_open(&s->kernel, s->child.pid);
    char path[48];
    snprintf(path, sizeof(path), "/proc/%d/exe", (int)s->child.pid);
    if (stat(path, &s->program) != 0) {
        s->program = (struct stat){ 0 };
    }
    s->last_data = now;
    *out = s;
    return SWX_OK;
}

static void release(swx_session *s)
{
    swx_kernel_close(&s->kernel);
    swx_child_close(&s->child);
    swx_pty_close(&s->pty);
    swx_buf_free(&s->output);
    swx_buf_free(&s->pending);
    for (size_t i = 0; i < SWX_COUNT(s->parts); i++) {
        swx_buf_free(&s->parts[i]);
    }
    swx_free(s);
}

void swx_session_free(swx_session *s)
{
    if (!s) {
        return;
    }
    if (s->child.pid > 0 && s->state != CLOSED) {
        swx_child_signal(&s->child, SIGKILL);
        swx_child_kill_marked(&s->child.mark, 1);
        for (int i = 0; i < 1000 && !swx_child_ended(&s->child); i++) {
            usleep(100);
        }
    }
    release(s);
}

void swx_session_abandon(swx_session *s)
{
    if (s) {
        release(s);
    }
}

int swx_session_terminal(const swx_session *s) { return s->pty.master; }
int swx_session_pidfd(const swx_session *s) { return s->child.pidfd; }
pid_t swx_session_pid(const swx_session *s) { return s->child.pid; }
bool swx_session_wants_write(const swx_session *s) { return s->state != CLOSED && !typed_all(s); }

swx_session_state swx_session_look(const swx_session *s)
{
    swx_session_state facts = s->facts;
    facts.idle = s->state == IDLE && !s->first;
    return facts;
}
