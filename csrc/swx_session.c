/* The queue of operations: what is begun when, and when it has waited long enough.  See swx_session_private.h for the
 * whole. */
#include "swx_session_private.h"
#include "swx_tree.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "swx_alloc.h"
#include "swx_job_notice.h"

enum {
    LINE_MAX = 4095,    /* of a terminal in canonical mode; what is longer is cut silently */
    SHELL_READ = 1024,  /* bytes that bash reads at a time */
    PACED_PIECE = 2000, /* of a longer one: less than half of that */
    PROMPT_MOST = 4096,
    HELD_MOST = 64 * 1024,    /* bytes that are kept from the reader of a stream */
    UNCLAIMED_LIMIT = 1 << 20 /* output kept of a command that runs for nobody */
};

static const int64_t SHELL_START_LIMIT = 60000 * MS;

/* ---- time and small things ---- */

void swx_session_check_in(swx_session *s, int64_t now, int64_t delay) { s->check = now + delay; }

/* ---- rest ----
 *
 * A session that has been idle for a while keeps two descriptors, the master and the shell's pidfd: output is read and
 * the end of the shell is noticed as ever.  The two others (see swx_pty.h and swx_kernel.h) come back with the next
 * command.
 *
 * It is not asked who has the terminal open meanwhile.  A shell at its prompt has, and so has a carrier that runs;
 * should nobody have it, then nobody is there to whom it could matter, all that was written is read before the hang-up
 * is seen, and a descriptor of ours ends that at once. */

void swx_session_become_idle(swx_session *s, int64_t now)
{
    s->state = IDLE;
    s->idle_since = now;
    if (s->park_at == SWX_NEVER) {
        s->park_at = now + PARK_AFTER;
    }
}

static bool may_rest(const swx_session *s) { return s->state == IDLE && !s->first; }

static void park(swx_session *s, int64_t now)
{
    if (now - s->idle_since < PARK_AFTER) { /* there was a command meanwhile */
        s->park_at = s->idle_since + PARK_AFTER;
        return;
    }
    s->park_at = SWX_NEVER;
    if (swx_pty_park(&s->pty)) {
        swx_kernel_park(&s->kernel);
    }
}

/* On failure it is at rest as before. */
static swx_status unpark(swx_session *s, int64_t now, swx_error *err)
{
    if (s->pty.slave >= 0 && !s->kernel.rests) {
        return SWX_OK;
    }
    swx_status status = swx_pty_unpark(&s->pty, err);
    if (status == SWX_OK) {
        status = swx_kernel_unpark(&s->kernel, s->child.pid, err);
    }
    if (status != SWX_OK) {
        swx_pty_park(&s->pty);
        return status;
    }
    s->hung_up = false;
    swx_session_become_idle(s, now);
    return SWX_OK;
}

void swx_session_end_hangup(swx_session *s)
{
    s->park_at = SWX_NEVER;
    s->hung_up = s->state == CLOSING || swx_pty_unpark(&s->pty, NULL) != SWX_OK;
}

/* ---- the ends of operations ---- */

/* The output begins anew, and the offsets that refer to it. */
void swx_session_restart_output(swx_session *s)
{
    s->found.at = 0;
    s->notices = 0;
    for (swx_op *op = s->interrupts; op; op = op->link) {
        op->base = 0;
    }
}

/* Ends an operation.  The output of the running command goes with it when `with_output`. */
void swx_session_finish(swx_session *s, swx_op *op, swx_end end, int code, bool with_output)
{
    op->ended = op->matched && end == SWX_END_DONE;
    op->end = op->matched && end != SWX_END_CANCELLED ? SWX_END_MATCHED : end;
    op->code = code;
    if (end == SWX_END_LOST) {
        op->error = (swx_error){ .status = SWX_ECLOSED, .text = s->loss };
    }
    op->limit = s->output_limit;
    /* Without START marks a shell that left its terminal, and has ended of that, looks as one that ended by this
     * command: only the kernel's word, or a guard's mark, which comes by the shell's own input, tells that it read from
     * its terminal before. */
    bool told = s->expects_start || s->guard || has_evidence(s) || op->kind != SWX_OP_RUN;
    op->begun = with_output && s->begun && op->typed_out && told;
    op->signal = end == SWX_END_DIED && WIFSIGNALED(s->child.wait_status) ? WTERMSIG(s->child.wait_status) : 0;
    if (with_output && !op->matched) {
        swx_completion_drop_start(s);
    }
    if (with_output) {
        if (op->matched) {
            swx_buf_free(&s->output);
        } else {
            op->output = s->output;
        }
        s->reader_is_behind = false;
        swx_buf_init(&s->output, UNCLAIMED_LIMIT);
        swx_session_restart_output(s);
    } else {
        swx_buf_init(&op->output, s->output_limit);
    }
    op->done(op);
}

void swx_session_finish_list(swx_session *s, swx_op **list, swx_end end, int code)
{
    while (*list) {
        swx_op *op = *list;
        *list = op->link;
        op->link = NULL;
        swx_session_finish(s, op, end, code, false);
    }
}

void swx_session_finish_all(swx_session *s, swx_end end, int code)
{
    swx_op *current = s->current;
    s->current = NULL;
    if (current) {
        swx_session_finish(s, current, end, code, true);
    }
    swx_session_finish_list(s, &s->interrupts, end, code);
    swx_session_finish_list(s, &s->first, end, code);
    s->last = NULL;
}

static void take_first(swx_session *s)
{
    swx_op *op = s->first;
    s->first = op->link;
    op->link = NULL;
    if (!s->first) {
        s->last = NULL;
    }
}

void swx_session_claim_start(swx_session *s)
{
    if (s->pty.carrier && s->state == STARTING && s->first && s->first->kind == SWX_OP_START) {
        s->current = s->first;
        take_first(s);
    }
}

void swx_session_lose(swx_session *s)
{
    s->state = LOST;
    swx_session_finish_all(s, SWX_END_LOST, 0);
}

/* ---- typing ---- */

/* In canonical mode the kernel cuts a line that is too long and passes the rest on as if it were whole; and a
 * program may go to that mode at any time.  So a piece is written when the one before was read.  One without an end
 * waits until somebody waits for it, who cannot change the mode meanwhile, and the key that ends the input passes it
 * on: else it would lie there for whoever takes the terminal from that mode and back, and leaves it to the shell.
 * When the shell is at its prompt the rest was for a program that is gone, and nobody knows who has read the pieces. */
static bool has_reader(const swx_session *s)
{
    return has_evidence(s) ? swx_tree_has_reader(&s->child, s->pty.path)
                           : swx_kernel_group_awaits_input(swx_pty_foreground(&s->pty));
}

static void flush_paced(swx_session *s)
{
    while (!typed_all(s) && swx_pty_input_consumed(&s->pty)) {
        bool at_prompt = has_evidence(s) ? swx_kernel_look(&s->kernel) == SWX_SHELL_PROMPT : s->found.rank > 0;
        if (at_prompt && s->begun) {
            s->written = s->pending.size;
            s->shell_may_have_piece = s->passed_on;
            s->check = 0;
            return;
        }
        size_t part = s->pending.size - s->written < PACED_PIECE ? s->pending.size - s->written : PACED_PIECE;
        const uint8_t *from = s->pending.data + s->written, *end = memrchr(from, '\n', part);
        part = end ? (size_t)(end + 1 - from) : part;
        bool canonical = swx_pty_is_canonical(&s->pty);
        if (!end && canonical && (!has_reader(s) || !swx_pty_is_canonical(&s->pty))) {
            return;
        }
        ssize_t size = write(s->pty.master, from, part);
        if (size <= 0) {
            return;
        }
        s->written += (size_t)size;
        s->passed_on = from[size - 1] != '\n';
        uint8_t key = swx_pty_end_of_input(&s->pty);
        if (s->passed_on && canonical && write(s->pty.master, &key, 1) != 1) {
            return;
        }
        if (!has_evidence(s)) { /* what the shell has said before it reads that is to be heard first */
            return;
        }
    }
}

void swx_session_flush_pending(swx_session *s)
{
    if (s->paced) {
        flush_paced(s);
        if (!typed_all(s)) {
            return;
        }
    }
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
    s->paced = false;
}

bool swx_session_type_bytes(swx_session *s, const void *bytes, size_t size)
{
    if (swx_buf_append(&s->pending, bytes, size) != SWX_OK) {
        return false;
    }
    swx_session_flush_pending(s);
    return true;
}

bool swx_session_type_end(swx_session *s)
{
    const uint8_t *text = s->tail.data, *end = s->hidden ? memchr(text, '\n', s->tail.size) : NULL;
    size_t line = end ? (size_t)(end - text) : s->tail.size;
    bool typed = swx_session_type_bytes(s, text, line) &&
                 (!end || swx_session_type_bytes(s, SWX_QUOTED_NEWLINE, sizeof(SWX_QUOTED_NEWLINE) - 1));
    if (s->hidden) {
        swx_pty_show(&s->pty);
    }
    if (end) {
        typed = typed && swx_session_type_bytes(s, &s->pty.shown.c_cc[VEOF], 1) &&
                swx_session_type_bytes(s, end + 1, s->tail.size - line - 1);
    }
    s->hidden = s->raw = false;
    swx_buf_clear(&s->tail);
    return typed;
}

bool swx_session_drop_input(swx_session *s)
{
    bool half = s->half_line_typed;
    s->half_line_typed = false;
    if (!s->pty.carrier) {
        swx_pty_forget_input(&s->pty);
        return true;
    }
    return !half || swx_session_type_bytes(s, "\025", 1); /* the key that kills a line */
}

/* ---- beginning a command ---- */

static void expect_end(swx_session *s, int64_t now, bool at_prompt)
{
    s->state = RUNNING;
    s->found = (candidate){ 0 };
    s->expects_start = at_prompt && s->start_marks;
    s->begun = !s->expects_start;
    if (at_prompt) {
        s->started = s->replied = false;
        s->base = s->number;
        s->read_before = s->expects_start || !has_evidence(s) ? -1 : swx_kernel_bytes_read(s->child.pid);
        s->commenced = now;
        s->newest = s->jobs ? swx_kernel_last_start() : 0;
        s->newest = s->newest < 0 ? INT64_MAX : s->newest;
    }
    s->number_too_high = s->empty_line_before = false;
    s->start_dropped = s->start_marks || s->report.no_stderr; /* then nothing of it comes */
    s->helper_until = 0;
    s->delivered = s->last_data = now;
    /* readline cannot be seen there, so it may be on */
    s->readline_seen = s->pty.carrier && (s->hints & SWX_HINT_EDITING);
    s->interrupted_at = s->sync_newline_at = s->still = 0;
    s->notices = 0;
    s->backoff = FIRST_CHECK;
    swx_session_check_in(s, now, s->backoff);
}

static bool put(swx_session *s, const void *bytes, size_t size)
{
    return swx_buf_append(&s->pending, bytes, size) == SWX_OK;
}

/* The startup script in a brace group, between what makes the prompts ours alone and what puts them back when the
 * script has changed them.  (Bash would report new mail right before a prompt, in the output of any command.)
 * HISTFILE: `history -a` in somebody's PROMPT_COMMAND complains if it is empty.  Before bash 5, root's `history -w`
 * renames /dev/null. */
static bool type_startup(swx_session *s, const swx_op *op)
{
    static const char head[] = "{\nbuiltin set +H; builtin export -n PS0 PS1 PS2 HISTFILE; "
                               "((BASH_VERSINFO[0] < 5)) || HISTFILE=/dev/null; builtin unset MAILCHECK; ";
    /* this group is not the user's */
    static const char tail[] = "\nbuiltin history -d -1 2>/dev/null || builtin :\n}\n";
    static const char plain[] = "builtin set +o emacs +o vi\n"; /* nobody would see that readline is on */
    bool typed = put(s, head, sizeof(head) - 1) && (!s->pty.carrier || swx_shelltext_modes(&s->pending) == SWX_OK) &&
                 put(s, "\n", 1) && put(s, op->typed, op->typed_size) && put(s, "\n", 1) &&
                 (!s->pty.carrier || put(s, plain, sizeof(plain) - 1)) &&
                 swx_shelltext_prompts(&s->pending, &s->marks) == SWX_OK;
    if (!has_evidence(s)) { /* a prompt that somebody else has made would never be noticed */
        s->reassert = true;
        typed = typed && put(s, "\n", 1) && swx_shelltext_reassert(&s->pending, &s->marks, false) == SWX_OK;
    }
    typed = typed && put(s, tail, sizeof(tail) - 1);
    if (typed) { /* all at once: a shell that is woken by the first line would have to sleep again */
        swx_session_flush_pending(s);
    }
    return typed;
}

static bool has_long_line(const uint8_t *bytes, size_t size, size_t column, size_t most)
{
    for (size_t i = 0; i < size; i++) {
        column = bytes[i] == '\n' ? 0 : column + 1;
        if (column > most) {
            return true;
        }
    }
    return false;
}

/* Bytes for a program: it may change the modes, and may leave the last of them unread. */
static void note_typed(swx_session *s, const uint8_t *bytes, size_t size)
{
    s->modes_may_differ = s->pty.carrier;
    s->half_line_typed = size ? bytes[size - 1] != '\n' && bytes[size - 1] != '\r' : s->half_line_typed;
    const uint8_t *end = size ? memrchr(bytes, '\n', size) : NULL;
    if (!s->paced && !s->pty.carrier && has_long_line(bytes, size, s->column, LINE_MAX)) {
        s->paced = true;
        s->passed_on = false;
    }
    s->column = end ? size - (size_t)(end + 1 - bytes) : s->column + size;
}

static size_t last_line(const uint8_t *text, size_t size)
{
    const uint8_t *before = size > 1 ? memrchr(text, '\n', size - 1) : NULL;
    return before ? (size_t)(before + 1 - text) : 0;
}

/* Types a command, or a part of it: the rest when the shell has read that. */
static bool type_command(swx_session *s, const swx_op *op, bool at_prompt)
{
    size_t part = op->typed_size;
    s->hidden = at_prompt && part && swx_pty_hide(&s->pty, s->attached);
    s->raw = at_prompt && op->raw && part > RAW_TAIL;
    if (s->raw) {
        part -= RAW_TAIL;
    } else if (s->hidden) {
        part = op->kind == SWX_OP_RUN ? last_line(op->typed, part) : 0;
    }
    if (part < op->typed_size && swx_buf_append(&s->tail, op->typed + part, op->typed_size - part) != SWX_OK) {
        return false;
    }
    s->arriving = s->raw || (s->hidden && (part || s->empty_line_before));
    if (s->raw) {
        swx_pty_set_raw(&s->pty, true);
    }
    return swx_session_type_bytes(s, op->typed, part) && (s->arriving || !s->tail.size || swx_session_type_end(s));
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
    return op && !op->held && !s->current && !s->shell_may_have_piece &&
           (s->state == IDLE || (s->state == RUNNING && !s->arriving && op->kind == SWX_OP_LINE));
}

/* Whether the shell's prompts may be out of sight from this command on. */
static bool may_hide_prompts(const swx_session *s, const swx_op *op)
{
    return op->kind == SWX_OP_RUN && (op->hints & SWX_HINT_STDERR) && !s->guard;
}

/* Whether the terminal may have modes after this command in which no question can be typed, such as a letter that
 * erases. */
static bool may_spoil_typing(const swx_session *s, const swx_op *op)
{
    return s->pty.carrier && op->kind == SWX_OP_RUN && (op->hints & SWX_HINT_STTY) && !s->adds_cr && !s->keeps_modes;
}

/* Where nothing tells that the prompts are gone, or nobody could be asked, PROMPT_COMMAND puts them back or marks the
 * ends itself, but with a carrier only once something may take them. */
static bool has_to_arm(const swx_session *s, const swx_op *op)
{
    bool may_touch = op->kind == SWX_OP_RUN ? (op->hints & (SWX_HINT_PROMPT | SWX_HINT_SOURCE)) != 0
                                            : op->kind == SWX_OP_LINE && op->typed_size;
    bool unarmed = s->pty.carrier && !s->reassert && !s->guard;
    bool last =
        op->kind == SWX_OP_RUN && (op->hints & SWX_HINT_LAST) && !s->reassert && !s->guard && !s->marks_impossible;
    return s->state == IDLE && (last || (!has_evidence(s) && ((unarmed && may_touch) || may_hide_prompts(s, op) ||
                                                              may_spoil_typing(s, op))));
}

/* Why the text cannot be typed at all, or NULL. */
static const char *refusal(const swx_session *s, const swx_op *op)
{
    if (s->pty.carrier && op->kind == SWX_OP_LINE && has_long_line(op->typed, op->typed_size, 0, LINE_MAX)) {
        return "a line for a carrier's terminal has at most 4095 bytes";
    }
    return s->pty.carrier && op->raw ? "a carrier's terminal cannot be put into raw mode for a command" : NULL;
}

/* An empty line before a command lets the shell report jobs that ended meanwhile, and run a trap on SIGCHLD.  Bash 5.2
 * loses a line that it reads in several parts when such a trap waits: where nothing tells of jobs, or the line is a
 * long one, it has to have run. */
static bool wants_pause(const swx_session *s, const swx_op *op)
{
    bool silent = s->marks_impossible && s->report.no_stderr; /* nothing of what the line shows is seen */
    bool parts = op->kind == SWX_OP_RUN && has_long_line(op->typed, op->typed_size, 0, SHELL_READ - 1);
    return silent || (s->start_marks && (s->jobs || s->owed)) ||
           ((s->start_marks || (s->guard && !s->prompt_follows_guard && !s->pty.carrier)) && parts);
}

/* What has to be done to the shell before the first operation may be typed: it is asked, so that its prompts are set
 * anew. True: that has begun. */
static bool arms_first(swx_session *s, const swx_op *op, bool at_prompt, int64_t now)
{
    bool spoils = at_prompt && !s->brace_may_be_alias && (op->hints & SWX_HINT_BRACE),
         rewrites = spoils && (s->reassert || s->guard || s->marks_impossible);
    s->brace_may_be_alias = s->brace_may_be_alias || spoils;
    if (has_to_arm(s, op)) { /* without a mark: `$?`, `$_` and PIPESTATUS are as they were when it is done */
        s->keeps_modes = may_spoil_typing(s, op);
        s->guard = s->guard || (!has_evidence(s) && may_hide_prompts(s, op));
        s->reassert = s->reassert || !s->keeps_modes || (op->hints & (SWX_HINT_PROMPT | SWX_HINT_SOURCE));
        rewrites = true;
    }
    if (rewrites) {
        s->arms_prompt = true;
        s->found = (candidate){ 0 };
        swx_resync_begin(s, now, false);
    }
    return rewrites;
}

/* The operation is the one whose command runs: what is known of the running command begins anew. */
static void make_current(swx_session *s, swx_op *op, bool at_prompt, int64_t now)
{
    s->current = op;
    s->hints = at_prompt ? op->hints : s->hints | op->hints;
    s->numbers_may_skip = op->kind == SWX_OP_LINE || s->attached;
    s->column = at_prompt ? 0 : s->column;
    if (op->kind == SWX_OP_LINE && op->typed_size) {
        note_typed(s, op->typed, op->typed_size);
    }
    size_t limit = op->stream && s->output_limit < SWX_STREAM_LEAST ? SWX_STREAM_LEAST : s->output_limit;
    s->reader_is_behind = false;
    if (s->output.limit == limit) {
        swx_buf_clear(&s->output);
    } else {
        swx_buf_free(&s->output);
        swx_buf_init(&s->output, limit);
    }
    swx_session_restart_output(s);
    if (at_prompt || op->typed_size) { /* one that only waits for the end changes nothing that is known of it */
        expect_end(s, now, at_prompt);
    }
    s->lines = count_lines(op->typed, op->typed_size);
    op->typed_out = true;
    op->base = 0;
    if (op->match) {
        swx_match_reset(op->match);
    }
}

static void type_current(swx_session *s, swx_op *op, bool at_prompt, int64_t now)
{
    bool typed = true;
    if (op->kind == SWX_OP_START) {
        op->deadline = op->step < SWX_NEVER - now ? now + op->step : SWX_NEVER;
        typed = type_startup(s, op);
        op->typed_size = 0;
    }
    if (at_prompt && wants_pause(s, op)) {
        typed = swx_session_type_bytes(s, "\n", 1);
        s->empty_line_before = true;
    }
    if (!typed || !type_command(s, op, at_prompt)) {
        s->current = NULL;
        if (s->raw) {
            swx_pty_set_raw(&s->pty, false);
        }
        s->arriving = s->raw = s->hidden = false;
        swx_buf_clear(&s->tail);
        swx_session_finish(s, op, SWX_END_MEMORY, 0, false);
    } else if (s->arriving) {
        s->backoff = MS / 20;
        swx_session_check_in(s, now, s->backoff);
    }
}

/* Ends the first operation, before anything is changed of what runs. */
static void refuse_first(swx_session *s, swx_error why)
{
    swx_op *op = s->first;
    take_first(s);
    op->error = why;
    swx_session_finish(s, op, SWX_END_SYSTEM, 0, false);
}

static void begin_first(swx_session *s, int64_t now)
{
    swx_op *op = s->first;
    bool at_prompt = s->state == IDLE, asks = at_prompt && op->kind == SWX_OP_LINE && !op->typed_size;
    swx_error failed;
    const char *refused = refusal(s, op);
    if (refused) {
        refuse_first(s, (swx_error){ .status = SWX_ELIMIT, .text = refused });
        return;
    }
    if (at_prompt && !asks && unpark(s, now, &failed) != SWX_OK) {
        swx_session_ended(s, now); /* if it ended in this very moment, that is what is told */
        if (s->first == op) {
            refuse_first(s, failed);
        }
        return;
    }
    if (arms_first(s, op, at_prompt, now)) {
        return;
    }
    take_first(s);
    if (asks) { /* only how the last command ended */
        op->typed_out = true;
        swx_session_finish(s, op, SWX_END_DONE, s->code, true);
    } else if (at_prompt && !swx_session_drop_input(s)) {
        swx_session_finish(s, op, SWX_END_MEMORY, 0, false);
    } else {
        make_current(s, op, at_prompt, now);
        type_current(s, op, at_prompt, now);
    }
}

/* Called whenever something went away that others may wait for, and at the end of each call that may have ended
 * something. */
void swx_session_begin(swx_session *s, int64_t now)
{
    while (can_begin(s)) {
        begin_first(s, now);
    }
}

/* ---- deadlines ---- */

static int64_t quiet_deadline(const swx_session *s, const swx_op *op)
{
    return op->quiet && op == s->current && !swx_output_is_held(s) ? s->last_data + op->quiet : SWX_NEVER;
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
    if (may_rest(s)) {
        due = earlier(due, s->park_at);
    }
    if (s->state == STARTING || s->state == RESYNC) {
        due = earlier(due, s->give_up);
    }
    if (s->paced) {
        due = earlier(due, s->pace);
    }
    if (s->current) {
        due = earlier(due, earlier(s->current->deadline, quiet_deadline(s, s->current)));
    }
    due = s->first ? earlier(due, s->expiry) : due;
    for (const swx_op *op = s->interrupts; op; op = op->link) {
        due = earlier(due, op->next);
    }
    return due;
}

static void expire_waiting(swx_session *s, int64_t now)
{
    swx_op *before = NULL;
    if (!s->first || s->expiry > now) {
        return;
    }
    s->expiry = SWX_NEVER;
    for (swx_op *op = s->first; op;) {
        swx_op *after = op->link;
        if (op->deadline <= now) {
            *(before ? &before->link : &s->first) = after;
            if (s->last == op) {
                s->last = before;
            }
            op->link = NULL;
            if (op->held && !before && !s->current && s->state == IDLE) { /* what it waited for is no earlier command */
                op->error = (swx_error){ .status = SWX_EBUSY, .text = "its syntax was still being checked" };
            }
            swx_session_finish(s, op, SWX_END_TIMEOUT, 0, false);
        } else {
            s->expiry = earlier(s->expiry, op->deadline);
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
            swx_close_step(s, now);
        }
        return;
    }
    if (s->paced && s->pace <= now) {
        s->pace = now + MS;
        bool may = has_evidence(s) || swx_pty_input_consumed(&s->pty);
        if (may && !has_evidence(s)) { /* a mark is all that tells whether a program has read it, or the shell */
            swx_output_read(s, true, now);
        }
        if (may) {
            swx_session_flush_pending(s);
        }
    }
    if (s->check <= now) {
        s->check = SWX_NEVER;
        swx_completion_check(s, now, false);
    }
    if (s->state == STARTING && s->give_up <= now) {
        swx_session_claim_start(s);
        swx_session_lose(s);
    }
    if (s->state == RESYNC && s->give_up <= now) {
        swx_session_lose(s);
    }
    swx_op *op = s->current;
    if (op && (op->deadline <= now || quiet_deadline(s, op) <= now)) {
        swx_output_read(s, true, now); /* what is there came in time */
        if (s->found.rank) {
            swx_completion_check(s, now, true);
        }
        if (s->current == op && (op->deadline <= now || quiet_deadline(s, op) <= now)) {
            s->current = NULL;
            swx_session_finish(s, op, op->deadline <= now ? SWX_END_TIMEOUT : SWX_END_QUIET, 0, true);
        }
    }
    expire_waiting(s, now);
    swx_interrupt_step(s, now);
    swx_session_begin(s, now);
    swx_output_tell_news(s);
    if (may_rest(s) && s->park_at <= now) {
        park(s, now);
    }
}

/* ---- operations ---- */

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
        swx_session_finish(s, op, SWX_END_DONE, 0, false);
        return;
    }
    op->next = op->since = now;
    op->until = op->calm = 0;
    op->target = 0;
    op->looks = 0;
    op->killed = op->missed = op->unborn = false;
    op->base = s->output.total;
    if (op->match) {
        swx_match_reset(op->match);
    }
    push(&s->interrupts, op);
    swx_interrupt_step(s, now);
}

void swx_session_submit(swx_session *s, swx_op *op, int64_t now)
{
    op->end = SWX_END_NONE;
    op->link = NULL;
    op->taken = 0;
    op->typed_out = op->processed = op->begun = op->matched = op->ended = false;
    if (op->kind == SWX_OP_CLOSE) {
        push(&s->closer, op);
        swx_close_begin(s, now);
        if (s->state == CLOSED) {
            swx_session_finish_list(s, &s->closer, SWX_END_DONE, 0);
        }
        return;
    }
    switch (s->state) {
    case DEAD:
        if (s->idle_since && s->facts.wait_status != SWX_STATUS_LOST && WIFEXITED(s->facts.wait_status)) {
            op->error = (swx_error){ .status = SWX_ECLOSED,
                                     .text = "it did so while no command ran, as TMOUT makes a shell do" };
        }
        swx_session_finish(s, op, SWX_END_DIED, swx_child_code(&s->child), false);
        return;
    case LOST: swx_session_finish(s, op, SWX_END_LOST, 0, false); return;
    case CLOSING:
    case CLOSED: swx_session_finish(s, op, SWX_END_CLOSED, 0, false); return;
    default: break;
    }
    if (op->kind == SWX_OP_INTERRUPT) {
        submit_interrupt(s, op, now);
        return;
    }
    if (op->kind == SWX_OP_START && s->pty.carrier && s->state == STARTING) {
        /* it may wait for a password, or for a place that is frozen */
        int64_t limit = op->patience ? op->patience : op->step;
        s->give_up = limit < SWX_NEVER - now ? earlier(s->give_up, now + limit) : s->give_up;
    }
    s->expiry = s->first ? earlier(s->expiry, op->deadline) : op->deadline;
    *(s->first ? &s->last->link : &s->first) = op;
    s->last = op;
    swx_session_begin(s, now);
}

void swx_session_release(swx_session *s, swx_op *op, int64_t now)
{
    op->held = false;
    if (op->end == SWX_END_NONE) {
        swx_session_begin(s, now);
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
        swx_session_finish(s, op, SWX_END_CANCELLED, 0, true);
    } else if (unlink_op(&s->first, op) || unlink_op(&s->interrupts, op) || unlink_op(&s->closer, op)) {
        s->last = s->first;
        while (s->last && s->last->link) {
            s->last = s->last->link;
        }
        op->link = NULL;
        swx_session_finish(s, op, SWX_END_CANCELLED, 0, false);
    }
    if (can_begin(s)) {
        s->check = 0; /* it was what the others waited for */
    }
}

/* How many more bytes a reader may have while the command runs.  What may be taken out of the output at its end is kept
 * from it: what looks like a job notice with all that is behind it, and the end where a changed prompt may be. */
static uint64_t may_take(const swx_session *s, const swx_op *op)
{
    uint64_t size = s->output.total > op->taken ? s->output.total - op->taken : 0;
    bool prompt = (s->hints & SWX_HINT_PROMPT) || s->marks_impossible || s->prompt_follows_guard ||
                  (!s->pty.carrier && (s->hints & SWX_HINT_SOURCE));
    if (s->attached) {
        return size;
    }
    if (swx_completion_holds_start(s)) {
        return 0;
    }
    if (prompt) {
        size = size > PROMPT_MOST ? size - PROMPT_MOST : 0;
    }
    if (size && size <= HELD_MOST && swx_completion_asks_about_notices(s)) {
        size = swx_job_notice_begin(s->output.data + op->taken, (size_t)size);
    }
    return size;
}

size_t swx_session_take(swx_session *s, swx_op *op, uint8_t *out, size_t room, int64_t now)
{
    bool runs = op->end == SWX_END_NONE && !op->matched;
    if (runs && op == s->current && !s->attached && !swx_completion_holds_start(s)) {
        swx_completion_drop_start(s);
    }
    const swx_buf *from = runs ? &s->output : &op->output;
    swx_span spans[3];
    size_t copied = 0;
    if (op->end == SWX_END_NONE && (op != s->current || (s->expects_start && !s->begun))) {
        return 0;
    }
    swx_buf_spans(from, spans);
    uint64_t at = 0, dropped = swx_buf_dropped(from), most = runs ? may_take(s, op) : UINT64_MAX;
    room = room < most ? room : (size_t)most;
    for (size_t i = 0; i < SWX_COUNT(spans) && copied < room; i++) {
        if (i == 1) {
            at += dropped;
        }
        if (i > 0 && spans[i].size > 0 &&
            op->taken < at) { /* the reader was too far behind: it is told what it misses */
            char note[sizeof(SWX_DROPPED_NOTE) + 20];
            int size = snprintf(note, sizeof(note), SWX_DROPPED_NOTE, (unsigned long long)(at - op->taken));
            if ((size_t)size > room - copied) {
                break;
            }
            memcpy(out + copied, note, (size_t)size);
            copied += (size_t)size;
            op->taken = at;
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
    if (op == s->current) {
        swx_output_make_room(s, now);
    }
    return copied;
}

void swx_session_attach(swx_session *s, bool attached)
{
    s->attached = attached;
    s->query = 0;
    s->numbers_may_skip = s->numbers_may_skip || attached;
}

swx_status swx_session_type(swx_session *s, const uint8_t *bytes, size_t size, int64_t now)
{
    if (s->state == DEAD || s->state == CLOSING || s->state == CLOSED || s->state == LOST) {
        return SWX_ECLOSED;
    }
    if (s->state != RUNNING || s->arriving) {
        return SWX_EBUSY;
    }
    s->numbers_may_skip = true;
    s->delivered = now;
    note_typed(s, bytes, size);
    return swx_session_type_bytes(s, bytes, size) ? SWX_OK : SWX_ENOMEM;
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

/* ---- birth and end of the object ---- */

static size_t count_strings(char *const *list)
{
    size_t count = 0;
    while (list && list[count]) {
        count++;
    }
    return count;
}

/* The prompts come in the environment, so that the first prompt is the first mark and nothing has to be typed.  With an
 * empty HISTFILE bash neither reads the owner's history at its start nor cuts it to 500 lines. */
static swx_status start_shell(swx_session *s, const swx_session_config *config, swx_error *err)
{
    char ps0[SWX_MARKS_TEXT + 4] = "PS0=", ps1[SWX_MARKS_TEXT + 4] = "PS1=", ps2[] = "PS2=";
    char histfile[] = "HISTFILE=";
    char *argv[] = { (char[]){ "bash" },        (char[]){ "--noprofile" }, (char[]){ "--norc" },
                     (char[]){ "--noediting" }, (char[]){ "-i" },          NULL };
    size_t count = count_strings(config->environment);
    char **environment = swx_malloc((count + 5) * sizeof(*environment));
    if (!environment) {
        return swx_fail(err, SWX_ENOMEM, "out of memory");
    }
    swx_marks_ps0(&s->marks, ps0 + 4);
    swx_marks_ps1(&s->marks, ps1 + 4);
    if (count) {
        memcpy(environment, config->environment, count * sizeof(*environment));
    }
    environment[count] = ps0;
    environment[count + 1] = ps1;
    environment[count + 2] = ps2;
    environment[count + 3] = histfile;
    environment[count + 4] = NULL;
    swx_spawn spawn = { .file = config->argv ? config->argv[0] : config->shell,
                        .argv = config->argv ? config->argv : argv,
                        .environment = environment,
                        .directory = config->directory,
                        .terminal = s->pty.path,
                        .program_mark = config->program_mark };
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
    swx_buf_init(&s->tail, SIZE_MAX / 2);
    swx_buf_init(&s->modes, PART_LIMIT);
    for (size_t i = 0; i < SWX_COUNT(s->parts); i++) {
        swx_buf_init(&s->parts[i], PART_LIMIT);
    }
    s->check = s->park_at = SWX_NEVER;
    s->give_up = now + SHELL_START_LIMIT;
    s->backoff = FIRST_CHECK;
    swx_status status = swx_pty_open(&s->pty, config->argv != NULL, config->rows, config->columns, err);
    if (status == SWX_OK) {
        status = swx_marks_init(&s->marks, err);
    }
    if (status == SWX_OK) {
        status = start_shell(s, config, err);
    }
    if (status != SWX_OK) {
        swx_session_free(s);
        return status;
    }
    if (!config->argv && !config->unproven) {
        swx_kernel_open(&s->kernel, s->child.pid);
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
    swx_buf_free(&s->tail);
    swx_buf_free(&s->modes);
    for (size_t i = 0; i < SWX_COUNT(s->parts); i++) {
        swx_buf_free(&s->parts[i]);
    }
    swx_free(s);
}

bool swx_session_is_slow(const swx_session *s) { return s->state == CLOSING; }

swx_child *swx_session_doomed(swx_session *s)
{
    return s->child.pid > 0 && s->state != CLOSED && !s->child.tree_ended ? &s->child : NULL;
}

void swx_session_free(swx_session *s)
{
    if (!s) {
        return;
    }
    swx_child *child = swx_session_doomed(s);
    if (child) {
        swx_tree_end_all(&child, 1);
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
bool swx_session_wants_write(const swx_session *s) { return s->state != CLOSED && !typed_all(s) && !s->paced; }

swx_session_state swx_session_look(const swx_session *s)
{
    swx_session_state facts = s->facts;
    facts.idle = s->state == IDLE && !s->first;
    facts.doubtful = swx_resync_is_needed(s);
    facts.commenced = s->commenced;
    facts.hides = s->hints & SWX_HINT_HIDES;
    return facts;
}
