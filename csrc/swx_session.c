/* The queue of operations, their ends and deadlines, and the object itself.  swx_session_private.h has the overview. */
#include "swx_session_private.h"
#include "swx_tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "swx_job_notice.h"

enum { PROMPT_MOST = 4096 };
enum { HELD_MOST = 64 * 1024 }; /* most bytes that are held back from the reader of a stream */
static const int64_t SHELL_START_LIMIT = 60000 * MS;

/* ---- parking: see README.md ---- */

void swx_session_become_idle(swx_session *s, int64_t now)
{
    s->state = IDLE;
    s->parking.idle_since = now;
    if (s->parking.park_at == SWX_NEVER) {
        s->parking.park_at = now + PARK_AFTER;
    }
}

static bool may_park(const swx_session *s) { return s->state == IDLE && !s->queue.first; }

static void park(swx_session *s, int64_t now)
{
    if (now - s->parking.idle_since < PARK_AFTER) { /* a command ran since then */
        s->parking.park_at = s->parking.idle_since + PARK_AFTER;
        return;
    }
    s->parking.park_at = SWX_NEVER;
    if (swx_pty_park(&s->pty) && has_evidence(s)) { /* else the read of the prompt may still be learned */
        swx_kernel_close(&s->kernel);
    }
}

/* After a failure the session stays parked as before. */
swx_status swx_session_unpark(swx_session *s, int64_t now, swx_error *err)
{
    if (s->pty.slave >= 0 && !swx_kernel_is_parked(&s->kernel)) {
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
    s->parking.hung_up = false;
    swx_session_become_idle(s, now);
    return SWX_OK;
}

void swx_session_end_hangup(swx_session *s)
{
    s->parking.park_at = SWX_NEVER;
    s->parking.hung_up = s->state == CLOSING || swx_pty_unpark(&s->pty, NULL) != SWX_OK;
}

/* ---- the ends of operations ---- */

void swx_session_restart_output(swx_session *s)
{
    s->run.found.at = s->run.before.at = 0;
    s->run.notices = 0;
    for (swx_op *op = s->interrupt.first; op; op = op->link) {
        op->base = 0;
    }
}

/* Ends an operation.  with_output: it gets the output of the running command. */
static void finish(swx_session *s, swx_op *op, swx_end end, int code, bool with_output)
{
    op->ended = op->matched && end == SWX_END_DONE;
    op->end = op->matched && end != SWX_END_CANCELLED ? SWX_END_MATCHED : end;
    op->code = code;
    if (end == SWX_END_LOST) {
        op->error = (swx_error){ .status = SWX_ECLOSED, .text = s->loss };
    }
    op->limit = s->output.limit;
    /* Without START marks a shell that left its terminal, and ended before it read this command, looks like a shell
     * that this command has ended.  Only the kernel, or a guard's mark, tells that the shell read from its terminal
     * before. */
    bool told = s->run.expects_start || s->shell.guard || has_evidence(s) || op->kind != SWX_OP_RUN;
    op->begun = with_output && s->run.begun && op->typed_out && told;
    op->signal = end == SWX_END_DIED && WIFSIGNALED(s->child.wait_status) ? WTERMSIG(s->child.wait_status) : 0;
    if (with_output && !op->matched) {
        swx_completion_drop_start(s);
        swx_output_hand_over(s, op);
    } else if (op->ended) { /* what came behind the match is nobody's */
        swx_buf_free(&s->output.kept);
        swx_session_restart_output(s);
    } else if (!with_output) {
        swx_buf_init(&op->output, s->output.limit);
    }
    op->done(op);
}

void swx_session_finish(swx_session *s, swx_op *op, swx_end end, int code) { finish(s, op, end, code, false); }

swx_op *swx_session_claimant(const swx_session *s) { return s->current ? s->current : s->interrupt.first; }

swx_op *swx_session_pop(swx_op **list)
{
    swx_op *op = *list;
    *list = op->link;
    op->link = NULL;
    return op;
}

void swx_session_finish_claimant(swx_session *s, swx_end end, int code)
{
    if (swx_session_claimant(s)) {
        finish(s, swx_session_pop(s->current ? &s->current : &s->interrupt.first), end, code, true);
    }
}

void swx_session_finish_list(swx_session *s, swx_op **list, swx_end end, int code)
{
    while (*list) {
        finish(s, swx_session_pop(list), end, code, false);
    }
}

void swx_session_finish_all(swx_session *s, swx_end end, int code)
{
    swx_typing_forget(s);
    if (s->current) {
        swx_session_finish_claimant(s, end, code);
    }
    swx_session_finish_list(s, &s->interrupt.first, end, code);
    swx_session_finish_list(s, &s->queue.first, end, code);
    s->queue.end = &s->queue.first;
}

swx_op *swx_session_take_first(swx_session *s)
{
    swx_op *op = swx_session_pop(&s->queue.first);
    s->queue.end = s->queue.first ? s->queue.end : &s->queue.first;
    return op;
}

void swx_session_claim_start(swx_session *s)
{
    if (s->state == STARTING && s->queue.first && s->queue.first->kind == SWX_OP_START) {
        s->current = swx_session_take_first(s);
    }
}

void swx_session_lose(swx_session *s)
{
    s->state = LOST;
    swx_session_finish_all(s, SWX_END_LOST, 0);
}

/* Ends the interrupts of an operation whose syntax is being checked, as done, before it leaves the queue. */
static void end_its_interrupts(swx_session *s, const swx_op *op)
{
    if (op->held && op == s->queue.first && (s->state == IDLE || (s->current && s->current->ahead))) {
        swx_session_finish_list(s, &s->interrupt.first, SWX_END_DONE, 0);
    }
}

/* ---- deadlines ---- */

static int64_t quiet_deadline(const swx_session *s, const swx_op *op)
{
    return op->quiet && op == s->current && !swx_output_is_held(s) ? s->output.last_data + op->quiet : SWX_NEVER;
}

int64_t swx_session_deadline(const swx_session *s)
{
    if (s->state == CLOSED || s->state == CLOSING) {
        return s->state == CLOSED ? SWX_NEVER : s->close.step;
    }
    int64_t due = s->check;
    if (may_park(s)) {
        due = earlier(due, s->parking.park_at);
    }
    if (s->state == STARTING || s->state == RESYNC) {
        due = earlier(due, s->give_up);
    }
    if (s->input.paced) {
        due = earlier(due, s->input.pace);
    }
    if (s->current) {
        due = earlier(due, earlier(s->current->deadline, quiet_deadline(s, s->current)));
    }
    due = s->queue.first ? earlier(due, s->queue.expiry) : due;
    for (const swx_op *op = s->interrupt.first; op; op = op->link) {
        due = earlier(due, op->next);
    }
    return due;
}

static void expire_waiting(swx_session *s, int64_t now)
{
    if (!s->queue.first || s->queue.expiry > now) {
        return;
    }
    s->queue.expiry = SWX_NEVER;
    for (s->queue.end = &s->queue.first; *s->queue.end;) {
        swx_op *op = *s->queue.end;
        if (op->deadline > now) {
            s->queue.expiry = earlier(s->queue.expiry, op->deadline);
            s->queue.end = &op->link;
            continue;
        }
        end_its_interrupts(s, op);
        swx_session_pop(s->queue.end);
        if (op->held && s->queue.end == &s->queue.first && !s->current &&
            s->state == IDLE) { /* no earlier command delays it */
            op->error = (swx_error){ .status = SWX_EBUSY, .text = "its syntax was still being checked" };
        }
        swx_session_finish(s, op, SWX_END_TIMEOUT, 0);
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
        if (s->close.step <= now) {
            swx_close_step(s, now);
        }
        return;
    }
    if (s->input.paced && s->input.pace <= now) {
        size_t written = s->input.written;
        int64_t begin = swx_now();
        bool may = has_evidence(s) || swx_pty_input_consumed(&s->pty);
        if (may && !has_evidence(s)) { /* only a mark tells whether the shell has read the piece, or a program */
            swx_output_read(s, true, now);
        }
        if (may) {
            swx_session_flush_pending(s);
        }
        s->input.pace = now + MS;
        if (s->input.written == written) { /* looking for a reader takes longer, the more processes there are */
            s->input.pace += 20 * (swx_now() - begin);
        }
    }
    if (s->check <= now) {
        s->check = SWX_NEVER;
        swx_completion_check(s, now, false);
    }
    if ((s->state == STARTING || s->state == RESYNC) && s->give_up <= now) {
        swx_session_claim_start(s);
        swx_session_lose(s);
    }
    swx_op *op = s->current;
    if (op && (op->deadline <= now || quiet_deadline(s, op) <= now)) {
        swx_output_read(s, true, now); /* output that is there came in time */
        if (s->run.found.rank) {
            swx_completion_check(s, now, true);
        }
        if (s->current == op && (op->deadline <= now || quiet_deadline(s, op) <= now)) {
            swx_session_finish_claimant(s, op->deadline <= now ? SWX_END_TIMEOUT : SWX_END_QUIET, 0);
        }
    }
    expire_waiting(s, now);
    swx_interrupt_step(s, now);
    swx_session_begin(s, now);
    swx_output_tell_news(s);
    if (may_park(s) && s->parking.park_at <= now) {
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

void swx_session_submit(swx_session *s, swx_op *op, int64_t now)
{
    if (op->kind == SWX_OP_CLOSE) {
        push(&s->close.first, op);
        swx_close_begin(s, now);
        if (s->state == CLOSED) {
            swx_session_finish_list(s, &s->close.first, SWX_END_DONE, 0);
        }
        return;
    }
    switch (s->state) {
    case DEAD:
        if (s->parking.idle_since && s->child.wait_status != SWX_STATUS_LOST && WIFEXITED(s->child.wait_status)) {
            op->error = (swx_error){ .status = SWX_ECLOSED,
                                     .text = "it did so while no command ran, as TMOUT makes a shell do" };
        }
        finish(s, op, SWX_END_DIED, swx_child_code(&s->child), op->kind == SWX_OP_START); /* its output says why */
        return;
    case LOST: swx_session_finish(s, op, SWX_END_LOST, 0); return;
    case CLOSING:
    case CLOSED: swx_session_finish(s, op, SWX_END_CLOSED, 0); return;
    default: break;
    }
    if (op->kind == SWX_OP_INTERRUPT) {
        op->next = op->since = now;
        swx_output_begin_search(s, op, s->output.kept.total);
        push(&s->interrupt.first, op);
        swx_interrupt_step(s, now);
        return;
    }
    if (op->kind == SWX_OP_START && op->patience && s->state == STARTING) {
        s->give_up = earlier(s->give_up, now + op->patience);
    }
    s->queue.expiry = s->queue.first ? earlier(s->queue.expiry, op->deadline) : op->deadline;
    if (op->ahead && s->queue.first) {
        op->link = s->queue.first;
        s->queue.first = op;
    } else {
        *s->queue.end = op;
        s->queue.end = &op->link;
    }
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
    while (*list && *list != op) {
        list = &(*list)->link;
    }
    return *list && swx_session_pop(list);
}

void swx_session_cancel(swx_session *s, swx_op *op)
{
    if (op->end != SWX_END_NONE) {
        return;
    }
    end_its_interrupts(s, op);
    if (s->current == op) {
        swx_session_finish_claimant(s, SWX_END_CANCELLED, 0);
    } else if (unlink_op(&s->queue.first, op) || unlink_op(&s->interrupt.first, op) || unlink_op(&s->close.first, op)) {
        for (s->queue.end = &s->queue.first; *s->queue.end;) {
            s->queue.end = &(*s->queue.end)->link;
        }
        swx_session_finish(s, op, SWX_END_CANCELLED, 0);
    }
    if (swx_typing_can_begin(s)) {
        s->check = 0; /* the others waited for it */
    }
}

/* How many more bytes a reader may take while the command runs.  Held back are bytes that may be removed from the
 * output when the command ends: from the first possible job notice on, and as many bytes at the end as a changed prompt
 * may have. */
static uint64_t may_take(const swx_session *s, const swx_op *op)
{
    uint64_t size = s->output.kept.total > op->taken ? s->output.kept.total - op->taken : 0;
    bool prompt = (s->run.hints & SWX_HINT_PROMPT) || s->shell.marks_impossible || s->shell.prompt_follows_guard ||
                  (s->transport->has_processes && (s->run.hints & SWX_HINT_SOURCE));
    if (swx_completion_holds_start(s)) {
        return 0;
    }
    if (prompt) {
        size = size > PROMPT_MOST ? size - PROMPT_MOST : 0;
    }
    if (size && size <= HELD_MOST && swx_completion_asks_about_notices(s)) {
        size = swx_job_notice_begin(s->output.kept.data + op->taken, (size_t)size);
    }
    return size;
}

size_t swx_session_take(swx_session *s, swx_op *op, uint8_t *out, size_t room, int64_t now)
{
    bool runs = op->end == SWX_END_NONE && !op->matched;
    if (runs && op == s->current && !swx_completion_holds_start(s)) {
        swx_completion_drop_start(s);
    }
    const swx_buf *from = runs ? &s->output.kept : &op->output;
    swx_span spans[3];
    size_t copied = 0;
    if (op->end == SWX_END_NONE && (op != s->current || !s->run.begun)) {
        return 0;
    }
    swx_buf_spans(from, spans);
    uint64_t at = 0, dropped = swx_buf_dropped(from), most = runs ? may_take(s, op) : UINT64_MAX;
    room = room < most ? room : (size_t)most;
    for (size_t i = 0; i < SWX_COUNT(spans) && copied < room; i++) {
        if (i == 1) {
            at += dropped;
        }
        if (i > 0 && spans[i].size > 0 && op->taken < at) { /* a note tells a late reader how much is missing */
            char note[SWX_NOTE_SIZE];
            size_t size = swx_buf_note(at - op->taken, note);
            if (size > room - copied) {
                break;
            }
            memcpy(out + copied, note, size);
            copied += size;
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

swx_status swx_session_type(swx_session *s, const uint8_t *bytes, size_t size, int64_t now)
{
    if (s->state == DEAD || s->state == CLOSING || s->state == CLOSED || s->state == LOST) {
        return SWX_ECLOSED;
    }
    if (s->state != RUNNING || s->input.arriving) {
        return SWX_EBUSY;
    }
    s->run.numbers_may_skip = true;
    s->run.delivered = now;
    swx_typing_note(s, bytes, size);
    return swx_session_type_bytes(s, bytes, size) ? SWX_OK : SWX_ENOMEM;
}

void swx_session_set_unwatch(swx_session *s, void (*unwatch)(void *owner, int fd), void *owner)
{
    s->unwatch = unwatch;
    s->owner = owner;
}

/* ---- birth and end of the object ---- */

/* The prompts come in the environment, so that the first prompt is the first mark and nothing has to be typed.  With an
 * empty HISTFILE bash neither reads the owner's history at its start nor cuts it to 500 lines. */
static swx_status start_shell(swx_session *s, const swx_session_config *config, swx_error *err)
{
    char ps0[SWX_MARKS_TEXT + 4], ps1[SWX_MARKS_TEXT + 4];
    char *const argv[] = { (char[]){ "bash" },        (char[]){ "--noprofile" }, (char[]){ "--norc" },
                           (char[]){ "--noediting" }, (char[]){ "-i" },          NULL };
    char *const added[] = { ps0, ps1, (char[]){ "PS2=" }, (char[]){ "HISTFILE=" }, NULL };
    size_t count = 0;
    while (config->environment[count]) {
        count++;
    }
    char **environment = malloc(count * sizeof(*environment) + sizeof(added));
    if (!environment) {
        return swx_fail(err, SWX_ENOMEM, "out of memory");
    }
    snprintf(ps0, sizeof(ps0), "PS0=%s", s->marks.ps0);
    snprintf(ps1, sizeof(ps1), "PS1=%s", s->marks.ps1);
    memcpy(environment, config->environment, count * sizeof(*environment));
    memcpy(environment + count, added, sizeof(added));
    swx_spawn spawn = { .file = config->program,
                        .argv = config->argv ? config->argv : argv,
                        .environment = environment,
                        .directory = config->directory,
                        .terminal = s->pty.path,
                        .program_mark = config->program_mark };
    swx_status status = swx_child_start(&s->child, &spawn, err);
    free(environment);
    return status;
}

swx_status swx_session_new(swx_session **out, const swx_session_config *config, int64_t now, swx_error *err)
{
    *out = NULL;
    swx_session *s = calloc(1, sizeof(*s));
    if (!s) {
        return swx_fail(err, SWX_ENOMEM, "out of memory");
    }
    s->pty.master = s->pty.slave = s->kernel.fd = s->child.pidfd = -1;
    s->queue.end = &s->queue.first;
    s->run.begun = true;
    s->output.limit = config->output_limit;
    swx_buf_init(&s->output.kept, s->output.limit);
    swx_buf_init(&s->input.pending, SIZE_MAX / 2);
    swx_buf_init(&s->input.tail, SIZE_MAX / 2);
    swx_buf_init(&s->shell.modes, PART_LIMIT);
    for (size_t i = 0; i < SWX_COUNT(s->answer.parts); i++) {
        swx_buf_init(&s->answer.parts[i], PART_LIMIT);
    }
    s->check = s->parking.park_at = SWX_NEVER;
    s->give_up = now + SHELL_START_LIMIT;
    s->backoff = FIRST_CHECK;
    s->transport = config->argv ? &swx_transport_stream : &swx_transport_pty;
    swx_status status = swx_pty_open(&s->pty, !s->transport->has_terminal, config->rows, config->columns, err);
    if (status == SWX_OK) {
        status = swx_marks_init(&s->marks, !s->transport->has_processes, err);
    }
    if (status == SWX_OK) {
        status = start_shell(s, config, err);
    }
    if (status != SWX_OK) {
        swx_session_free(s);
        return status;
    }
    if (s->transport->has_processes && !config->unproven) {
        swx_kernel_open(&s->kernel, s->child.pid);
    }
    s->output.last_data = now;
    *out = s;
    return SWX_OK;
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
    swx_kernel_close(&s->kernel);
    swx_child_close(&s->child);
    swx_pty_close(&s->pty);
    swx_buf_free(&s->output.kept);
    swx_buf_free(&s->input.pending);
    swx_buf_free(&s->input.tail);
    swx_buf_free(&s->shell.modes);
    for (size_t i = 0; i < SWX_COUNT(s->answer.parts); i++) {
        swx_buf_free(&s->answer.parts[i]);
    }
    free(s);
}

int swx_session_terminal(const swx_session *s) { return s->pty.master; }
int swx_session_pidfd(const swx_session *s) { return s->child.pidfd; }
pid_t swx_session_pid(const swx_session *s) { return s->child.pid; }
bool swx_session_wants_write(const swx_session *s) { return s->state != CLOSED && !typed_all(s) && !s->input.paced; }

swx_session_state swx_session_look(const swx_session *s)
{
    swx_session_state facts = s->facts;
    facts.idle = s->state == IDLE && !s->queue.first;
    facts.doubtful = swx_resync_is_needed(s);
    facts.kernel_proof = has_evidence(s);
    facts.hides = s->run.hints & SWX_HINT_HIDES;
    return facts;
}
