/* The queue of operations: what is begun when, and when it has waited long enough.  See swx_session_private.h for the whole. */
#include "swx_session_private.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "swx_alloc.h"

enum {
    LINE_MAX = 4095, /* of a terminal in canonical mode; what is longer is cut silently */
    UNCLAIMED_LIMIT = 1 << 20 /* output kept of a command that runs for nobody */
};

static const int64_t SHELL_START_LIMIT = 60000 * MS;

/* ---- time and small things ------------------------------------------------------------------------------------- */

void swx_session_check_in(swx_session *s, int64_t now, int64_t delay)
{
    s->check = now + delay;
}

/* ---- rest -------------------------------------------------------------------------------------------------------- *
 *
 * A session that has been idle for a while keeps two descriptors, the master and the shell's pidfd: output is read and the
 * end of the shell is noticed as ever.  The two others (see swx_pty.h and swx_kernel.h) come back with the next command.
 *
 * It is not asked who has the terminal open meanwhile.  A shell at its prompt has, and so has a carrier that runs; should
 * nobody have it, then nobody is there to whom it could matter, all that was written is read before the hang-up is seen, and
 * a descriptor of ours ends that at once. */

void swx_session_become_idle(swx_session *s, int64_t now)
{
    s->state = IDLE;
    s->idle_since = now;
    if (s->rest == SWX_NEVER) {
        s->rest = now + REST_AFTER;
    }
}

static bool may_rest(const swx_session *s) { return s->state == IDLE && !s->first; }

static void go_to_rest(swx_session *s, int64_t now)
{
    if (now - s->idle_since < REST_AFTER) { /* there was a command meanwhile */
        s->rest = s->idle_since + REST_AFTER;
        return;
    }
    s->rest = SWX_NEVER;
    if (swx_pty_rest(&s->pty)) {
        swx_kernel_rest(&s->kernel);
    }
}

/* On failure it is at rest as before. */
static swx_status rouse(swx_session *s, int64_t now, swx_error *err)
{
    if (s->pty.slave >= 0 && !s->kernel.rests) {
        return SWX_OK;
    }
    swx_status status = swx_pty_rouse(&s->pty, err);
    if (status == SWX_OK) {
        status = swx_kernel_rouse(&s->kernel, s->child.pid, err);
    }
    if (status != SWX_OK) {
        swx_pty_rest(&s->pty);
        return status;
    }
    s->hung = false;
    swx_session_become_idle(s, now);
    return SWX_OK;
}

void swx_session_end_hangup(swx_session *s)
{
    s->rest = SWX_NEVER;
    s->hung = s->state == CLOSING || swx_pty_rouse(&s->pty, NULL) != SWX_OK;
}

/* ---- the ends of operations ---------------------------------------------------------------------------------------- */

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
    op->end = end;
    op->code = code;
    op->limit = s->output_limit;
    op->begun = with_output && s->begun && op->typed_out;
    op->signal = end == SWX_END_DIED && WIFSIGNALED(s->child.wait_status) ? WTERMSIG(s->child.wait_status) : 0;
    if (with_output) {
        op->output = s->output;
        s->full = false;
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

void swx_session_claim_start(swx_session *s)
{
    if (s->pty.carrier && s->state == STARTING && s->first && s->first->kind == SWX_OP_START) {
        s->current = s->first;
        s->first = s->current->link;
        s->current->link = NULL;
    }
}

void swx_session_lose(swx_session *s)
{
    s->state = LOST;
    swx_session_finish_all(s, SWX_END_LOST, 0);
}

/* ---- typing ---------------------------------------------------------------------------------------------------- */

void swx_session_flush_pending(swx_session *s)
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

bool swx_session_type_bytes(swx_session *s, const void *bytes, size_t size)
{
    if (swx_buf_append(&s->pending, bytes, size) != SWX_OK) {
        return false;
    }
    swx_session_flush_pending(s);
    return true;
}

bool swx_session_drop_half(swx_session *s)
{
    bool half = s->half;
    s->half = false;
    if (!s->pty.carrier) {
        return true;
    }
    return !half || swx_session_type_bytes(s, "\025", 1); /* the key that kills a line */
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
    s->beyond = s->blank = false;
    s->helper_until = 0;
    s->delivered = s->last_data = now;
    s->readline_seen = s->pty.carrier && (s->hints & SWX_HINT_EDITING); /* readline cannot be seen there, so it may be on */
    s->struck = s->proving = 0;
    s->notices = 0;
    s->backoff = FIRST_CHECK;
    swx_session_check_in(s, now, s->backoff);
}

static bool put(swx_session *s, const void *bytes, size_t size) { return swx_buf_append(&s->pending, bytes, size) == SWX_OK; }

/* The startup script in a brace group, between what makes the prompts ours alone and what puts them back when the
 * script has changed them.  (Bash would report new mail right before a prompt, in the output of any command.) */
static bool type_startup(swx_session *s, const swx_op *op)
{
    static const char head[] = "{\nbuiltin set +H; builtin export -n PS0 PS1 PS2; builtin unset MAILCHECK; ";
    static const char tail[] = "\nbuiltin history -d -1 2>/dev/null || builtin :\n}\n"; /* this group is not the user's */
    static const char plain[] = "builtin set +o emacs +o vi\n"; /* nobody would see that readline is on */
    bool typed = put(s, head, sizeof(head) - 1) && (!s->pty.carrier || swx_shelltext_modes(&s->pending) == SWX_OK) &&
                 put(s, "\n", 1) && put(s, op->typed, op->typed_size) && put(s, "\n", 1) &&
                 (!s->pty.carrier || put(s, plain, sizeof(plain) - 1)) && swx_shelltext_prompts(&s->pending, &s->fence) == SWX_OK;
    if (!has_evidence(s)) { /* a prompt that somebody else has made would never be noticed */
        s->reassert = true;
        typed = typed && put(s, "\n", 1) && swx_shelltext_reassert(&s->pending, &s->fence) == SWX_OK;
    }
    typed = typed && put(s, tail, sizeof(tail) - 1);
    if (typed) { /* all at once: a shell that is woken by the first line would have to sleep again */
        swx_session_flush_pending(s);
    }
    return typed;
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

/* Bytes for a program: it may change the modes, and may leave the last of them unread. */
static void note_typed(swx_session *s, const uint8_t *bytes, size_t size)
{
    s->touched = s->pty.carrier;
    s->half = size ? bytes[size - 1] != '\n' && bytes[size - 1] != '\r' : s->half;
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

/* Whether the shell's prompts may be out of sight from this command on. */
static bool may_hide_prompts(const swx_session *s, const swx_op *op)
{
    return op->kind == SWX_OP_RUN && (op->hints & SWX_HINT_STDERR) && !s->guard;
}

/* Where nothing tells that the prompts are gone, PROMPT_COMMAND puts them back, but only once something may take them. */
static bool has_to_arm(const swx_session *s, const swx_op *op)
{
    bool may_touch = op->kind == SWX_OP_RUN ? (op->hints & (SWX_HINT_PROMPT | SWX_HINT_SOURCE)) != 0
                                            : op->kind == SWX_OP_LINE && op->typed_size;
    return s->pty.carrier && s->state == IDLE && ((!s->reassert && !s->guard && may_touch) || may_hide_prompts(s, op));
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

static void begin_first(swx_session *s, int64_t now)
{
    swx_op *op = s->first;
    bool at_prompt = s->state == IDLE, asks = at_prompt && op->kind == SWX_OP_LINE && !op->typed_size;
    swx_error failed;
    if (at_prompt && !asks && rouse(s, now, &failed) != SWX_OK) {
        swx_session_ended(s, now); /* if it ended in this very moment, that is what is told */
        if (s->first == op) {
            take_first(s);
            op->error = failed;
            swx_session_finish(s, op, SWX_END_SYSTEM, 0, false);
        }
        return;
    }
    if (has_to_arm(s, op)) { /* without a mark: `$?`, `$_` and PIPESTATUS are as they were when it is done */
        s->guard = s->guard || may_hide_prompts(s, op);
        s->reassert = s->arms = true;
        s->found = (candidate){ 0 };
        swx_settle_challenge(s, now, false);
        return;
    }
    take_first(s);
    if (asks) { /* only how the last command ended */
        op->typed_out = true;
        swx_session_finish(s, op, SWX_END_DONE, s->code, true);
        return;
    }
    if (at_prompt && s->loose) { /* half a line for a program that is gone would be the beginning of this command */
        swx_pty_forget_input(&s->pty);
        if (!swx_session_drop_half(s)) {
            swx_session_finish(s, op, SWX_END_MEMORY, 0, false);
            return;
        }
    }
    s->current = op;
    s->hints = at_prompt ? op->hints : s->hints | op->hints;
    s->loose = op->kind == SWX_OP_LINE || s->attached;
    if (op->kind == SWX_OP_LINE && op->typed_size) {
        note_typed(s, op->typed, op->typed_size);
    }
    size_t limit = op->stream && s->output_limit < SWX_STREAM_LEAST ? SWX_STREAM_LEAST : s->output_limit;
    s->full = false;
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
    const char *refused = op->kind == SWX_OP_LINE && line_too_long(s, op) ? "a line for a terminal in canonical mode has at most 4095 bytes"
                          : op->raw && s->pty.carrier ? "a carrier's terminal cannot be put into raw mode for a command"
                                                      : NULL;
    if (refused) {
        s->current = NULL;
        op->error = (swx_error){ .status = SWX_ELIMIT, .text = refused };
        s->state = at_prompt ? IDLE : RUNNING;
        swx_session_finish(s, op, SWX_END_SYSTEM, 0, false);
        return;
    }
    bool typed = true;
    if (op->kind == SWX_OP_START) {
        op->deadline = op->step < SWX_NEVER - now ? now + op->step : SWX_NEVER;
        typed = type_startup(s, op);
        op->typed_size = 0;
    }
    if (at_prompt && s->jobs && s->start_marks) { /* lets the shell report jobs that ended meanwhile before we begin */
        typed = swx_session_type_bytes(s, "\n", 1);
        s->blank = true;
    }
    size_t part = op->typed_size;
    if (op->raw && at_prompt && part > RAW_TAIL) {
        part -= RAW_TAIL;
        s->arriving = true;
        s->backoff = MS / 20;
        swx_session_check_in(s, now, s->backoff);
        swx_pty_set_raw(&s->pty, true);
    }
    if (!typed || !swx_session_type_bytes(s, op->typed, part)) {
        s->current = NULL;
        if (s->arriving) {
            s->arriving = false;
            swx_pty_set_raw(&s->pty, false);
        }
        swx_session_finish(s, op, SWX_END_MEMORY, 0, false);
    }
}

/* Called whenever something went away that others may wait for, and at the end of each call that may have ended something. */
void swx_session_begin(swx_session *s, int64_t now)
{
    while (can_begin(s)) {
        begin_first(s, now);
    }
}

/* ---- deadlines ------------------------------------------------------------------------------------------------- */

static int64_t quiet_deadline(const swx_session *s, const swx_op *op)
{
    return op->quiet && op == s->current && !swx_listen_is_held(s) ? s->last_data + op->quiet : SWX_NEVER;
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
        due = earlier(due, s->rest);
    }
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
            swx_session_finish(s, op, SWX_END_TIMEOUT, 0, false);
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
            swx_stop_drive_closing(s, now);
        }
        return;
    }
    if (s->check <= now) {
        s->check = SWX_NEVER;
        swx_settle(s, now, false);
    }
    if (s->state == STARTING && s->give_up <= now) {
        swx_session_claim_start(s);
        swx_session_lose(s);
    }
    if (s->state == CHALLENGE && s->give_up <= now) {
        swx_session_lose(s);
    }
    swx_op *op = s->current;
    if (op && (op->deadline <= now || quiet_deadline(s, op) <= now)) {
        swx_listen_read(s, true, now); /* what is there came in time */
        if (s->found.rank) {
            swx_settle(s, now, true);
        }
        if (s->current == op && (op->deadline <= now || quiet_deadline(s, op) <= now)) {
            s->current = NULL;
            swx_session_finish(s, op, op->deadline <= now ? SWX_END_TIMEOUT : SWX_END_QUIET, 0, true);
        }
    }
    expire_waiting(s, now);
    swx_stop_interrupts(s, now);
    swx_session_begin(s, now);
    swx_listen_tell_news(s);
    if (may_rest(s) && s->rest <= now) {
        go_to_rest(s, now);
    }
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
        swx_session_finish(s, op, SWX_END_DONE, 0, false);
        return;
    }
    op->next = op->since = now;
    op->until = op->calm = 0;
    op->target = 0;
    op->killed = op->missed = false;
    op->base = s->output.total;
    if (op->match) {
        swx_match_reset(op->match);
    }
    push(&s->interrupts, op);
    swx_stop_interrupts(s, now);
}

void swx_session_submit(swx_session *s, swx_op *op, int64_t now)
{
    op->end = SWX_END_NONE;
    op->link = NULL;
    op->taken = 0;
    op->typed_out = op->processed = op->begun = false;
    if (op->kind == SWX_OP_CLOSE) {
        push(&s->closer, op);
        swx_stop_closing(s, now);
        if (s->state == CLOSED) {
            swx_session_finish_list(s, &s->closer, SWX_END_DONE, 0);
        }
        return;
    }
    switch (s->state) {
    case DEAD:
        swx_session_finish(s, op, SWX_END_DIED, swx_child_code(&s->child), false);
        return;
    case LOST:
        swx_session_finish(s, op, SWX_END_LOST, 0, false);
        return;
    case CLOSING:
    case CLOSED:
        swx_session_finish(s, op, SWX_END_CLOSED, 0, false);
        return;
    default:
        break;
    }
    if (op->kind == SWX_OP_INTERRUPT) {
        submit_interrupt(s, op, now);
        return;
    }
    if (op->kind == SWX_OP_START && s->pty.carrier && s->state == STARTING) {
        int64_t limit = op->patience ? op->patience : op->step; /* it may wait for a password, or for a place that is frozen */
        s->give_up = limit < SWX_NEVER - now ? earlier(s->give_up, now + limit) : s->give_up;
    }
    push(&s->first, op);
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

size_t swx_session_take(swx_session *s, swx_op *op, uint8_t *out, size_t room, int64_t now)
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
        if (i > 0 && spans[i].size > 0 && op->taken < at) { /* the reader was too far behind: it is told what it misses */
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
        swx_listen_make_room(s, now);
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
    swx_spawn spawn = { .file = config->argv ? config->argv[0] : config->shell,
                        .argv = config->argv ? config->argv : argv,
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
    swx_buf_init(&s->modes, PART_LIMIT);
    for (size_t i = 0; i < SWX_COUNT(s->parts); i++) {
        swx_buf_init(&s->parts[i], PART_LIMIT);
    }
    s->check = s->rest = SWX_NEVER;
    s->give_up = now + SHELL_START_LIMIT;
    s->backoff = FIRST_CHECK;
    swx_status status = swx_pty_open(&s->pty, config->argv != NULL, config->rows, config->columns, err);
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
    if (!config->argv && !config->unproven) {
        swx_kernel_open(&s->kernel, s->child.pid);
    }
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
    swx_buf_free(&s->modes);
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
        for (int i = 0; i < 1000 && !swx_child_kill_tree(&s->child); i++) {
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
    facts.doubtful = swx_settle_is_doubtful(s);
    return facts;
}
