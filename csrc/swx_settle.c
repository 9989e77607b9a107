/* Has the command ended, and how?  The shell is looked at, and where that leaves a doubt it is asked. */
#include "swx_session_private.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "swx_notice.h"

enum {
    LOOKS_AT_ONCE = 12, /* a shell needs some microseconds from its prompt to its read */
    NOTICE_LIMIT = 1 << 20, /* output that is searched for job notices */
    CHALLENGE_ATTEMPTS = 3, /* to get a mark shown at all */
    PROOFS = 8 /* empty lines that are typed for those who may read the terminal besides the shell */
};

static const int64_t CALM = 5 * MS;
static const int64_t HELPER_LIMIT = 1000 * MS; /* for the reader of the shell's stdout to begin: it may never do */
static const int64_t HELPER_END = 3000 * MS; /* for all of it: others may print without end */
static const int64_t LEARN_LIMIT = 2000 * MS;   /* for a shell that showed its prompt to go to its read */
static const int64_t SILENCE = 20 * MS, CARRIED_SILENCE = 2000 * MS; /* after it nothing more is on its way, near and far */
static const int64_t ARRIVAL = 1500 * MS; /* for a command without a START mark to be read: a look has come there and back meanwhile */
static const int64_t UNHEARD = 200 * MS; /* of silence, where the kernel does not tell and no mark has come */
static const int64_t STRIKE_GRACE = 10 * MS; /* for the second prompt of a ^C that came when the command had just ended */
static const int64_t UNREAD_GRACE = 250 * MS; /* for the START mark behind a prompt of nobody's that came first */
static const int64_t PROOF_GRACE = 250 * MS;  /* for the shell to answer an empty line, before another one is typed */
static const int64_t FORK_TIME = MS / 10, FORK_WORK = MS / 25; /* no shell forks in less: a fork is 60 to 400 us of its own */
static const int64_t OUTPACED_AFTER = 20 * MS;  /* so long a command may have brought back a job of before without a fork */
static const int64_t OUTPACED_LIMIT = 2000 * MS; /* for a read ahead of the shell's to end when its process is killed */
static const int64_t START_GRACE = 20 * MS;     /* for a START mark, once the command was read */
static const int64_t PROMPT_LIMIT = 1000 * MS;  /* for a prompt that shows behind its mark, on a machine that is busy */
static const int64_t START_WORK = 20 * MS;      /* of the shell's own, for the same */

static bool contains(const uint8_t *text, size_t size, const char *part)
{
    return memmem(text, size, part, strlen(part)) != NULL;
}

static const uint8_t *find_last(const uint8_t *text, size_t size, const char *part)
{
    const uint8_t *found = NULL, *end = text + size;
    for (const uint8_t *at = text; (at = memmem(at, (size_t)(end - at), part, strlen(part))); at++) {
        found = at;
    }
    return found;
}

static bool ends_with(const uint8_t *text, size_t size, const char *part)
{
    size_t length = strlen(part);
    return size >= length && memcmp(text + size - length, part, length) == 0;
}

/* ---- what our own elements of PROMPT_COMMAND show -------------------------------------------------------------- */

/* Where our text begins in a line, behind what a command has left there without a newline.  NULL: it is not there,
 * or the user's own look at PROMPT_COMMAND. */
static const uint8_t *find_own(const swx_session *s, const uint8_t *line, size_t size)
{
    static const struct { const char *head, *end; bool group; } texts[] = {
        { SWX_REASSERT_GROUP, SWX_GROUP_END, true },
        { SWX_GUARD_GROUP, SWX_GROUP_END, true },
        { SWX_REASSERT, SWX_REASSERT_END, false },
        { SWX_REASSERT, SWX_REASSERT_TRACED, false },
        { SWX_REASSERT, SWX_REASSERT_BARE, false },
        { SWX_REASSERT, SWX_BARE_END, false },
        { SWX_GUARD, SWX_GUARD_END, false },
    };
    if (contains(line, size, "PROMPT_COMMAND") || !contains(line, size, s->fence.nonce)) {
        return NULL;
    }
    for (size_t i = 0; i < SWX_COUNT(texts); i++) {
        const uint8_t *at = find_last(line, size, texts[i].head);
        if (at && texts[i].group) {
            return ends_with(line, size, texts[i].end) ? at : NULL;
        }
        if (at && ends_with(line, size, texts[i].end)) {
            if (at - line < 2 || at[-1] != ' ' || at[-2] != '+') {
                return line; /* what a DEBUG trap says before it, or another PS4, goes too */
            }
            for (at--; at > line && at[-1] == '+';) {
                at--;
            }
            return at;
        }
    }
    return NULL;
}

/* What the shell shows of our element of PROMPT_COMMAND: under `set -x` where BASH_XTRACEFD is the terminal, under
 * `set -v`, and by a DEBUG trap that prints commands.  It runs after the command, so that it is the last. */
static void drop_own(swx_session *s)
{
    swx_buf *output = &s->output;
    while ((s->reassert || s->guard) && !swx_buf_dropped(output) && output->size && output->data[output->size - 1] == '\n') {
        const uint8_t *before = memrchr(output->data, '\n', output->size - 1);
        const uint8_t *line = before ? before + 1 : output->data;
        size_t size = output->size - (size_t)(line - output->data);
        const uint8_t *from = find_own(s, line, size);
        if (!from) {
            return;
        }
        swx_buf_chop(output, size - (size_t)(from - line));
    }
}

/* ---- the challenge --------------------------------------------------------------------------------------------- */

static bool is_silent(const swx_session *s, int64_t now)
{
    return now - s->last_data > (s->pty.carrier ? CARRIED_SILENCE : SILENCE);
}

/* What is to be asked about a carrier's terminal.  Bash itself puts its modes back when a job dies of a signal, but not when
 * one exits and leaves them. */
static swx_modes_question modes_question(const swx_session *s)
{
    if (!s->pty.carrier || (s->cooked && !s->exposed)) {
        return SWX_MODES_SKIP;
    }
    return s->exposed ? SWX_MODES_FIRST : s->hints & SWX_HINT_STTY ? SWX_MODES_KEEP : SWX_MODES_ASK;
}

/* The command has ended, and more is to be typed. */
static void settle_modes(swx_session *s)
{
    if (!s->readline_seen) { /* else readline's, which takes them back itself */
        s->processed = swx_pty_settle_modes(&s->pty, s->hints & SWX_HINT_STTY, s->attached) || s->processed;
    }
}

/* Types one of our lines.  A return is what ends it in readline, where a newline is a key that the user may have
 * bound. */
static bool type_line(swx_session *s, swx_buf *line)
{
    bool keys = swx_kernel_look(&s->kernel) == SWX_SHELL_READLINE;
    for (size_t i = 0; keys && i < line->size; i++) {
        line->data[i] = line->data[i] == '\n' ? '\r' : line->data[i];
    }
    return swx_session_type_bytes(s, line->data, line->size);
}

static void type_challenge(swx_session *s, int64_t now)
{
    swx_buf line;
    swx_buf_init(&line, PART_LIMIT);
    s->phase = ASK;
    s->part = 0;
    swx_buf_clear(&s->parts[0]); /* what is known of prompts holds until there is an answer */
    s->give_up = now + CHALLENGE_LIMIT;
    s->backoff = FIRST_CHECK;
    s->last_data = now;
    swx_session_check_in(s, now, s->backoff);
    s->question = modes_question(s);
    settle_modes(s);
    bool typed = (s->doubting || swx_fence_init(&s->fence, NULL) == SWX_OK) && swx_session_drop_input(s) &&
                 swx_shelltext_challenge(&line, &s->fence, s->question) == SWX_OK &&
                 type_line(s, &line);
    s->exposed = s->touched = false;
    swx_buf_free(&line);
    if (!typed) {
        swx_session_lose(s);
    }
}

/* What only looked like the beginning of a mark was output: no more comes that could make it one. */
void swx_settle_take_held(swx_session *s)
{
    size_t size = s->fence.held_size;
    s->fence.held_size = 0;
    swx_listen_take_plain(s, s->fence.held, size);
}

static void begin_challenge(swx_session *s, int64_t now, bool prompt_missing)
{
    drop_own(s); /* which the next nonce is not in */
    if ((s->begun || !s->expects_start) && !swx_settle_holds_start(s)) {
        swx_settle_drop_start(s); /* the answer has what the prompts print from now on */
    }
    s->state = CHALLENGE;
    s->thrown_away = s->read_before > 0 && swx_kernel_bytes_read(s->child.pid) == s->read_before;
    s->facts.challenges++;
    s->attempt = 0;
    s->doubted = s->found.rank;
    s->answered = false;
    s->prompt_missing = prompt_missing;
    s->unexpanded = s->found.rank && s->found.code < 0;
    bool replied = s->replied && s->found.rank;
    s->interrupted_once = s->ask_again = replied;
    s->told = replied ? s->found.code : -1;
    if (replied) { /* what it has read already would be the beginning of the question: it forgets that first */
        s->replied = false;
        s->phase = ASK;
        s->give_up = now + CHALLENGE_LIMIT;
        s->last_data = now;
        s->backoff = FIRST_CHECK;
        swx_session_check_in(s, now, s->backoff);
        swx_pty_signal(&s->pty, SIGINT, NULL);
    } else {
        type_challenge(s, now);
    }
}

/* The end of a command is in doubt, or our prompts are gone. */
void swx_settle_challenge(swx_session *s, int64_t now, bool prompt_missing)
{
    if (prompt_missing) {
        swx_settle_take_held(s);
    }
    s->doubting = false;
    begin_challenge(s, now, prompt_missing);
}

bool swx_settle_is_doubtful(const swx_session *s)
{
    /* A START mark came: what was typed has been read. Without one it may be on its way yet, behind a shell at its prompt, and
     * the question would become the input of what is read before it. Nor is it typed behind another one of ours.  Where no START
     * mark can come, behind a guard, with a readonly PS0 or for a line that a program was typed, time has to do. */
    return s->pty.carrier && s->state == RUNNING && s->begun && !s->found.rank && !s->attached &&
           !s->proving && !s->notices && typed_all(s) && !swx_listen_is_held(s);
}

bool swx_session_doubt(swx_session *s, uint64_t commands, int64_t now)
{
    bool arrived = (s->expects_start && !s->loose) || now - s->delivered > ARRIVAL;
    if (s->facts.commands != commands || !arrived || !swx_settle_is_doubtful(s)) {
        return false;
    }
    s->doubting = true;
    begin_challenge(s, now, true);
    return true;
}

/* The question, which a terminal with echo has shown behind the prompt, and the prompt itself, are no output. */
static void drop_echo(swx_session *s)
{
    swx_buf *output = &s->output;
    while (output->size && !swx_buf_dropped(output)) { /* both its questions begin so */
        size_t part = output->size < PART_LIMIT ? output->size : PART_LIMIT;
        const uint8_t *text = output->data + output->size - part, *at = find_last(text, part, SWX_CHALLENGE);
        if (!at || !contains(at, (size_t)(text + part - at), s->fence.nonce)) {
            return;
        }
        swx_buf_chop(output, (size_t)(text + part - at));
    }
}

void swx_settle_end_doubt(swx_session *s)
{
    s->prompt_missing = !s->found.rank;
    if (s->found.rank) { /* it was only late */
        swx_buf_chop(&s->output, (size_t)(s->output.total - s->found.at));
    } else {
        const swx_buf *ps0 = &s->parts[3]; /* the question's own */
        s->lost_prompts++;
        if (ps0->size && !swx_buf_dropped(ps0) && swx_buf_ends_with(&s->output, ps0->data, ps0->size)) {
            swx_buf_chop(&s->output, ps0->size);
        }
        drop_echo(s);
        static const uint8_t left[] = "\033[?2004l\r\n"; /* what readline writes where it does not show a line */
        if (s->readline_seen && swx_buf_ends_with(&s->output, left, sizeof(left) - 1)) {
            swx_buf_chop(&s->output, sizeof(left) - 1);
        }
    }
}

/* The last part of the answer: a line end, a digit when it is the first, and the modes.  True: they have to be put back. */
static bool take_modes(swx_session *s)
{
    if (!s->parts[5].size) { /* not even printf: nothing is known */
        return false;
    }
    const uint8_t *at = s->parts[5].data, *end = at + s->parts[5].size;
    bool processed = *at == '\r';
    at = memchr(at, '\n', (size_t)(end - at));
    if (s->question == SWX_MODES_FIRST) {
        s->reassert = !at || end - at < 2 || at[1] != '0';
        at = at ? memchr(at + 1, '\n', (size_t)(end - at - 1)) : NULL;
    }
    size_t size = 0;
    for (at = at ? at + 1 : end; at + size < end && at[size] != '\r' && at[size] != '\n';) {
        size++;
    }
    bool known = swx_shelltext_is_modes(at, size);
    s->processed = processed;
    if (s->question == SWX_MODES_FIRST) {
        s->cooked = processed && !known;
    }
    if (s->question == SWX_MODES_ASK || !known) {
        return known && s->modes.size && (size != s->modes.size || memcmp(at, s->modes.data, size) != 0);
    }
    swx_buf_clear(&s->modes);
    swx_buf_append(&s->modes, at, size); /* without memory they stay unknown, and are not put back */
    return false;
}

/* How many bytes the declaration of PIPESTATUS has that stands before `$_`, with the blank between them. */
static size_t size_of_codes(const swx_buf *state)
{
    bool declared = state->size && state->data[0] == 'd';
    const uint8_t *end = state->size ? memmem(state->data, state->size, declared ? ") " : " ", declared ? 2 : 1) : NULL;
    return end ? (size_t)(end - state->data) + 1 + declared : state->size;
}

static void type_restore(swx_session *s, int64_t now)
{
    swx_buf line;
    swx_buf_init(&line, PART_LIMIT);
    s->phase = RESTORE;
    s->attempt++;
    bool first = s->question == SWX_MODES_FIRST, changed = s->question != SWX_MODES_SKIP && take_modes(s);
    s->question = SWX_MODES_SKIP;
    s->found = (candidate){ 0 };
    s->give_up = now + CHALLENGE_LIMIT;
    s->last_data = now; /* a silence counts from here on */
    s->backoff = FIRST_CHECK;
    swx_session_check_in(s, now, s->backoff);
    /* First the prompts alone; if they do not show, the user's PROMPT_COMMAND may set them each time; if they still
     * do not, they may be readonly.  Where stderr is elsewhere they go there, and the kernel tells more than
     * PROMPT_COMMAND could. */
    bool silent = s->report.no_stderr, told = has_evidence(s), far = !told && s->prompt_missing;
    bool last = s->attempt > (far ? 1 : 2); /* where only silence tells each try takes its time: the first two are one */
    s->guard = s->guard || (!told && (silent || last));
    s->stubborn = !told && (s->stubborn || last || (s->guard && s->report.fixed_prompt)) && !silent;
    s->blind = s->blind || (told && (silent || last));
    if (s->blind) {
        s->reassert = s->reassert && !told;
    } else if (s->attempt > 1 || (s->prompt_missing && s->lost_prompts > 1) || far) {
        s->reassert = true;
    }
    const swx_buf *state = &s->parts[1];
    size_t codes = size_of_codes(state);
    swx_restore restore = {
        .code = s->report.code,
        .pipestatus = state->data,
        .pipestatus_size = codes,
        .last = state->size ? state->data + codes : NULL,
        .last_size = state->size - codes,
        .prompt_variables = s->unexpanded,
        .readline = s->readline_seen || s->pty.carrier, /* it cannot be seen there, and costs nothing */
        .silent = silent || s->guard,
        .guard = s->guard,
        .reassert = s->reassert && !s->guard,
        .unreassert = silent || s->guard || (s->blind && told && s->bare),
        .bare = s->bare,
        .disarm = first && !s->reassert,
        .keep_modes = s->keeps_modes && s->arms,
        .unkeep_modes = s->keeps_modes && !s->arms,
        .modes = s->modes.data,
        .modes_size = changed ? s->modes.size : 0,
    };
    s->keeps_modes = restore.keep_modes;
    bool fresh = !s->doubting || swx_fence_init(&s->fence, NULL) == SWX_OK; /* its prompt may come yet, and is not to count */
    s->doubting = false;
    bool typed = fresh && swx_shelltext_restore(&line, &s->fence, &restore) == SWX_OK &&
                 type_line(s, &line);
    swx_buf_free(&line);
    if (!typed) {
        swx_session_lose(s);
    }
}

/* ---- the end of a command -------------------------------------------------------------------------------------- */

/* Takes job notices out of the output, but for what a reader has taken already: see swx_session_take. */
static void remove_notices(swx_session *s)
{
    size_t size = s->output.size, taken = s->current ? (size_t)s->current->taken : 0;
    taken = taken < size ? taken : size;
    swx_buf_chop(&s->output, size - taken - swx_notice_remove(s->output.data + taken, size - taken));
}

bool swx_settle_asks_about_notices(const swx_session *s)
{
    return (s->jobs || s->owed) && !(s->hints & SWX_HINT_JOBS) && s->output.size <= NOTICE_LIMIT && !swx_buf_dropped(&s->output);
}

/* Bash reports ended jobs in the output of whatever runs when it notices, mostly right before its prompt.  Where lines
 * look like that, a job of an earlier command is known, and this command has no business with jobs, an empty line asks
 * for one more prompt: only if that many jobs less are left than before the command were the lines bash's own.
 * True: wait for that prompt. */
static bool asks_about_notices(swx_session *s, const candidate *found)
{
    if (s->notices) { /* that prompt is here */
        swx_buf_chop(&s->output, (size_t)(s->output.total - s->notice_end));
        if (s->jobs + s->owed >= found->jobs + s->notices) {
            remove_notices(s);
        }
        s->notices = 0;
        return false;
    }
    if (!swx_settle_asks_about_notices(s)) {
        return false;
    }
    s->notices = swx_notice_count(s->output.data, s->output.size);
    s->notice_end = s->output.total;
    if (s->notices) {
        settle_modes(s);
    }
    if (!s->notices || !swx_session_drop_input(s) || !swx_session_type_bytes(s, "\n", 1)) {
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

/* Bash may report jobs while it reads the command. */
static size_t leading_notices(const swx_session *s)
{
    return swx_settle_asks_about_notices(s) ? swx_notice_lead(s->output.data, s->output.size) : 0;
}

/* Once for a command, when there is enough of its output. */
size_t swx_settle_drop_start(swx_session *s)
{
    if (s->start_dropped || swx_buf_dropped(&s->output)) {
        return 0;
    }
    size_t notices = leading_notices(s), at = notices;
    s->start_dropped = true;
    for (unsigned i = 1; i < s->lines && starts_with(&s->output, at, &s->parts[4]); i++) {
        at += s->parts[4].size;
    }
    at += starts_with(&s->output, at, &s->parts[3]) ? s->parts[3].size : 0;
    at -= notices;
    if (at) {
        memmove(s->output.data + notices, s->output.data + notices + at, s->output.size - notices - at);
        swx_buf_chop(&s->output, at);
        uint64_t *taken = s->current && !s->current->matched ? &s->current->taken : NULL;
        uint64_t *const offsets[] = { &s->found.at, &s->before.at, &s->notice_end, taken };
        for (size_t i = 0; i < SWX_COUNT(offsets); i++) {
            if (offsets[i]) {
                *offsets[i] -= *offsets[i] < at ? *offsets[i] : at;
            }
        }
        for (swx_op *op = s->interrupts; op; op = op->link) {
            op->base -= op->base < at ? op->base : at;
        }
    }
    return at;
}

bool swx_settle_holds_start(const swx_session *s)
{
    if (s->start_dropped) {
        return false;
    }
    size_t notices = leading_notices(s), rest = s->output.size - notices;
    bool may_be_notice = swx_settle_asks_about_notices(s) && rest && swx_notice_begin(s->output.data + notices, rest) == 0;
    return s->state == CHALLENGE || may_be_notice || rest < s->parts[3].size + s->lines * s->parts[4].size;
}

/* After `exec > >(tee log)` and the like. */
static bool stdout_is_pipe(const swx_session *s)
{
    char path[48], target[16];
    if (s->pty.carrier) { /* that would be the carrier's; the hint is given for nothing else there */
        return true;
    }
    snprintf(path, sizeof(path), "/proc/%d/fd/1", (int)s->child.pid);
    ssize_t size = readlink(path, target, sizeof(target));
    return size > 5 && memcmp(target, "pipe:", 5) == 0;
}

/* Where the shell's stdout is a pipe: whether something in it was not read yet. */
static bool pipe_holds_more(const swx_session *s)
{
    char path[48];
    int size = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd/1", (int)s->child.pid);
    int fd = !s->pty.carrier && stdout_is_pipe(s) ? open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1;
    bool more = fd >= 0 && ioctl(fd, FIONREAD, &size) == 0 && size > 0;
    if (fd >= 0) {
        close(fd);
    }
    return more;
}

/* What prints for the shell gets time to read, and then a moment to write: that nobody can see from outside. */
static bool helper_is_behind(swx_session *s, int64_t now)
{
    int64_t quiet = now - s->last_data;
    s->helper_until = s->helper_until ? s->helper_until : now + HELPER_END;
    if (now >= s->helper_until) {
        return false;
    }
    if (quiet < HELPER_LIMIT && pipe_holds_more(s)) {
        s->helper_busy = now;
    }
    return quiet < CALM || now - s->helper_busy < 4 * CALM; /* it was slow just now */
}

/* unread: NULL, or why the shell has not run what was typed. */
static void conclude(swx_session *s, int code, uint32_t jobs, const char *unread, int64_t now)
{
    swx_settle_drop_start(s);
    drop_own(s);
    s->stopped = s->newborn = 0;
    settle_modes(s);
    bool processed = s->processed;
    s->processed = false;
    if (s->hints & SWX_HINT_SETTLE) {
        s->helper = stdout_is_pipe(s);
    }
    s->owed = s->hints & SWX_HINT_STARTS ? s->jobs : s->jobs > jobs ? s->jobs - jobs : 0;
    s->jobs = jobs;
    s->code = code;
    swx_session_become_idle(s, now);
    s->check = SWX_NEVER;
    s->facts.commands += !s->arms;
    s->arms = false;
    swx_op *op = s->current;
    s->current = NULL;
    if (op) {
        op->processed = processed;
        if (unread) {
            op->error = (swx_error){ .status = SWX_EINVAL, .text = unread };
        }
        swx_session_finish(s, op, unread ? SWX_END_SYSTEM : SWX_END_DONE, code, true);
    } else if (s->interrupts) { /* nobody else waits for this output */
        op = s->interrupts;
        s->interrupts = op->link;
        op->link = NULL;
        op->processed = processed;
        swx_session_finish(s, op, SWX_END_DONE, code, true);
    }
    swx_session_finish_list(s, &s->interrupts, SWX_END_DONE, code);
    swx_session_begin(s, now);
}

/* Empty, but for job notices. */
static bool says_nothing(const swx_buf *output)
{
    uint32_t lines = 0;
    for (size_t i = 0; i < output->size && output->size < NOTICE_LIMIT; i++) {
        lines += output->data[i] == '\n';
    }
    return !output->size || (output->size < NOTICE_LIMIT && output->data[output->size - 1] == '\n' &&
                             lines == swx_notice_count(output->data, output->size));
}

/* Behind a carrier the shell is asked for more than the command's end: see swx_session_private.h. */
static bool asks_carrier(const swx_session *s, const candidate *found)
{
    bool modes = (s->hints & SWX_HINT_STTY) || s->touched || found->code > 128;
    return s->pty.carrier && (s->exposed || (modes && !s->cooked));
}

/* A program that an interrupt left behind may still wait in a read of the terminal, which it began while it was in the
 * foreground, and would take the next line that is typed.  It may have an empty one; the shell answers that with a prompt. */
static void type_empty_line(swx_session *s, int64_t now)
{
    s->proving = now;
    s->proofs++;
    if (!swx_session_type_bytes(s, "\n", 1)) {
        swx_session_lose(s);
        return;
    }
    s->backoff = FIRST_CHECK;
    swx_session_check_in(s, now, s->backoff);
}

/* True: it is not proved yet that the shell reads what is typed. */
static bool proves_reading(swx_session *s, candidate *found, int64_t now)
{
    if (!s->pty.carrier || !s->struck || s->attached) {
        return false;
    }
    if (s->proving) {
        found->conflict = found->conflict || s->before.conflict || found->code != s->before.code;
        found->altered = found->altered || s->before.altered;
        found->rank = s->before.rank;
        found->at = s->before.at;
        return false;
    }
    s->before = *found;
    s->number = found->number ? found->number : s->number;
    s->found = (candidate){ 0 };
    s->started = false;
    s->proofs = 0;
    type_empty_line(s, now);
    return true;
}

static void conclude_from_mark(swx_session *s, int64_t now)
{
    candidate found = s->found;
    if (proves_reading(s, &found, now)) {
        return;
    }
    /* PS1 may hold a mark by now that was expanded before.  Behind a guard nothing else tells where stderr is, and
     * without START marks what PS0 and PS2 print. */
    bool own = ((s->hints & SWX_HINT_PROMPT) && !s->loose) || (s->guard && (s->hints & SWX_HINT_EXEC)) ||
               (!s->start_marks && (s->hints & SWX_HINT_SOURCE));
    /* A prompt, and nothing has run; and it is not that the shell said why (history expansion may fail). */
    bool idle = found.rank == 1 && s->current && s->current->runs && !s->begun && says_nothing(&s->output);
    if (found.conflict || found.altered || found.code < 0 || s->beyond || own || idle || s->replied ||
        asks_carrier(s, &found)) {
        swx_buf_chop(&s->output, (size_t)(s->output.total - found.at));
        swx_settle_challenge(s, now, false);
        return;
    }
    bool missed_start = s->expects_start && !s->begun && found.number > s->number;
    s->start_dropped = s->start_dropped && !missed_start;
    if (!s->helper) { /* what a helper prints comes behind the prompt */
        swx_buf_chop(&s->output, (size_t)(s->output.total - found.at));
    }
    s->number = found.number ? found.number : s->number;
    s->lost_prompts = 0;
    s->start_misses += missed_start; /* after two PS0 cannot be kept: the session goes on without, and knows what it prints */
    if (missed_start || s->readline_seen) {
        swx_settle_challenge(s, now, false);
        return;
    }
    if (!s->expects_start || s->begun) {
        s->start_misses = 0;
    }
    if (asks_about_notices(s, &found)) {
        swx_session_check_in(s, now, s->backoff);
        return;
    }
    conclude(s, found.code, found.jobs, NULL, now);
}

static bool is_digit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

/* How many bytes at the end of the output are that prompt, of which this is what it prints now.  Its numbers may be
 * others by now: of the command, of the history, a time.  One that it begins with has as many digits as now: before
 * it may be digits of the output. */
static size_t find_prompt(const swx_buf *output, const uint8_t *prompt, size_t size)
{
    const uint8_t *text = output->data;
    size_t at = output->size, lead = 0;
    if (!size || swx_buf_ends_with(output, prompt, size)) {
        return size;
    }
    if (swx_buf_dropped(output)) {
        return 0;
    }
    while (lead < size && is_digit(prompt[lead])) {
        lead++;
    }
    while (size > lead) {
        bool number = is_digit(prompt[size - 1]);
        if (!at || (number ? !is_digit(text[at - 1]) : text[at - 1] != prompt[size - 1])) {
            return 0;
        }
        do {
            size--;
        } while (number && size > lead && is_digit(prompt[size - 1]));
        do {
            at--;
        } while (number && at && is_digit(text[at - 1]));
    }
    for (; size; size--, at--) {
        if (!at || !is_digit(text[at - 1])) {
            return 0;
        }
    }
    return output->size - at;
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
    if (!swx_buf_dropped(prompt) && !s->report.no_stderr) {
        swx_buf_chop(&s->output, find_prompt(&s->output, prompt->data, size));
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
        swx_session_lose(s);
        return;
    }
    bool missed = count <= 0 && s->doubted < 2 && s->expects_start && !s->begun;
    if (s->current && s->current->runs && (missed || s->thrown_away)) {
        unread = "the shell did not run what was typed: it waited for more of it, or something else read the terminal";
    } else if (s->interrupted_once && s->told < 0 && !s->interrupts) {
        unread = "its exit code is not known: the shell did not tell it before it was sent a SIGINT";
    }
    drop_prompt(s);
    s->number = s->found.number ? s->found.number : s->number;
    /* A prompt that is right but for PS0 says that PS0 cannot be kept. */
    s->start_marks = !s->guard && !s->blind && s->found.ps0_kept && s->start_misses < 2;
    s->readline_seen = false;
    uint32_t notices = s->found.rank && swx_settle_asks_about_notices(s) ? swx_notice_count(s->output.data, s->output.size) : 0;
    if (notices && s->jobs + s->owed >= s->found.jobs + notices) {
        remove_notices(s);
    }
    for (unsigned i = 0; i < LOOKS_AT_ONCE && !has_evidence(s); i++) { /* another bash in the same process */
        if (swx_kernel_learn(&s->kernel) != SWX_MORE) {
            break;
        }
    }
    conclude(s, s->report.code, s->found.rank ? s->found.jobs : s->jobs, unread, now);
}

/* ---- is the shell at its prompt? ------------------------------------------------------------------------------- */

typedef enum { NOT_YET, AT_PROMPT, NO_EVIDENCE } where;

/* Where the kernel does not tell of system calls: what the shell does that is no wait for input at its own terminal, as running
 * something in the foreground, or computing.  Who prints a mark then is not the shell at its prompt. */
static bool is_seen_elsewhere(swx_session *s)
{
    return !s->pty.carrier && (swx_pty_foreground(&s->pty) != s->child.pid ||
                               !swx_kernel_may_await_input(&s->kernel, s->child.pid, false));
}

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
        case SWX_SHELL_UNKNOWN: /* readline's prompt is one in raw mode; a program may have left that too, and no harm is done */
            if (!has_evidence(s) && is_seen_elsewhere(s)) {
                break;
            }
            s->readline_seen = s->readline_seen || (s->found.rank && s->state == RUNNING && !s->arriving && !s->attached &&
                                                    !swx_pty_is_canonical(&s->pty));
            return NO_EVIDENCE;
        case SWX_SHELL_ELSEWHERE:
            break;
        }
    }
    return NOT_YET;
}

/* To be asked when the shell was seen in its read with nothing to read, and no mark says that it has read what was typed: more of
 * that may be on its way.  The kernel's worker brings as much of a long text as there is room for; the shell that has taken the
 * last of that puts it to work again, and until it has done that the shell is asleep in its read too, but in the kernel's
 * business (D) and not in the wait for input (S).  One that has not worked meanwhile was in the same sleep all the time. */
static bool waits_for_input(const swx_session *s)
{
    int64_t worked = swx_kernel_worked(s->child.pid);
    bool reads = swx_kernel_look(&s->kernel) != SWX_SHELL_ELSEWHERE && swx_kernel_sleeps(s->child.pid);
    /* In that sleep it has put the worker to work already, if there is more to bring, and this waits for the worker. */
    return reads && swx_pty_input_consumed(&s->pty) && swx_kernel_worked(s->child.pid) == worked;
}

/* Everything that was written before the shell came to its prompt is in the buffers of the kernel, and a read that
 * finds nothing has flushed them.  True when all of it is here. */
bool swx_settle_drained(swx_session *s, int64_t now)
{
    bool more = true;
    state was = s->state;
    challenge_phase phase = s->phase;
    for (unsigned round = 0; more && round < 16; round++) {
        more = swx_listen_read(s, true, now);
    }
    return !more && s->state == was && s->phase == phase;
}

static void try_again_later(swx_session *s, int64_t now)
{
    swx_session_check_in(s, now, s->backoff);
    s->backoff = earlier(s->backoff * 2, LONGEST_CHECK);
}

/* Whether the shell has read all and gone on: it waits for something, or has worked for longer than to parse that.  Time alone
 * says nothing: on a busy machine it may not have had a processor. */
static bool is_past_start(swx_session *s, int64_t now)
{
    if (now - s->delivered <= START_GRACE || !typed_all(s) || !swx_pty_input_consumed(&s->pty)) {
        return false;
    }
    int64_t worked = swx_kernel_worked(s->child.pid);
    bool first = !s->still;
    s->still = first ? worked : s->still;
    return !first && (worked < 0 || worked - s->still > START_WORK || swx_kernel_sleeps(s->child.pid));
}

/* The command was read and runs, but the START mark did not come: somebody has changed PS0.  What has arrived so far is
 * taken for its output. */
static void begin_without_mark(swx_session *s)
{
    s->begun = true;
    s->expects_start = false;
    swx_op *op = swx_listen_matching(s);
    if (!op) {
        return;
    }
    swx_buf so_far = s->output;
    op->base = 0;
    swx_span spans[3];
    swx_buf_init(&s->output, so_far.limit);
    swx_buf_spans(&so_far, spans);
    for (size_t i = 0; i < SWX_COUNT(spans); i++) {
        swx_listen_take_output(s, spans[i].bytes, spans[i].size);
    }
    if (swx_listen_matching(s) == op && s->output.size == so_far.size) {
        s->output.total += swx_buf_dropped(&so_far); /* head and tail lie as they did */
    }
    swx_buf_free(&so_far);
}

/* A ^C that is typed to a carrier may find the command ended, and the shell then shows a second prompt: behind this command's, or
 * before the next one's START.  Neither must decide. */
static bool is_early(const swx_session *s, int64_t now)
{
    bool unread = s->found.rank == 1 && s->current && s->current->runs && s->expects_start && !s->begun;
    return (s->struck && now - s->struck < STRIKE_GRACE) || (unread && now - s->delivered < UNREAD_GRACE);
}

/* A prompt that nobody can change comes behind the guard's mark, and is not to be the next command's output. */
static bool shows_prompt(const swx_session *s, int64_t now)
{
    bool missing = s->output.total - s->found.at < s->parts[2].size;
    return s->stubborn && s->found.rank && now - s->last_data < (missing ? PROMPT_LIMIT : CALM);
}

/* Whether the shell may have started something since its terminal was last known to be its own.  Not where nobody has started
 * anything, nor where it has not worked enough for a fork: with many sessions at once a command takes longer than one, and the
 * shell may work as long.  From there on the next command counts, and not many together. */
static bool may_have_left(swx_session *s, int64_t now)
{
    if (s->stopped > 0 || s->found.code > 128 || now - s->delivered > OUTPACED_AFTER) {
        return true;
    }
    if (now - s->delivered < FORK_TIME) {
        return false;
    }
    int64_t last = swx_kernel_last_start();
    if (last >= 0 && last == s->last_start && !s->jobs) { /* a job may be brought back */
        return false;
    }
    int64_t worked = swx_kernel_worked(s->child.pid);
    if (worked < 0 || worked - s->worked > FORK_WORK) {
        return true;
    }
    s->worked = worked;
    s->last_start = last;
    return false;
}

/* Something that the command left behind, as a pager that outlived the program that opened it, may be in a read of the terminal
 * that began in the foreground.  It would take the next command or our question, or, worse, their first letter.  Asked before
 * either is typed, and only where it may be: a look costs a short command a tenth. */
static bool is_outpaced(swx_session *s, where at, int64_t now)
{
    if (s->pty.carrier || !may_have_left(s, now)) {
        return false;
    }
    int64_t last = swx_kernel_last_start(); /* before the look: what is started after it counts */
    bool proved = at == AT_PROMPT, tells = (proved || !has_evidence(s)) && !s->attached; /* else a person may be typing, to whatever it is */
    swx_kernel_turn turn = tells ? swx_kernel_turn_of(s->child.pid) : SWX_TURN_UNKNOWN;
    if (turn == SWX_TURN_UNKNOWN && s->stopped > 0 && s->stopped != s->child.pid) {
        swx_child_kill_readers(&s->child, s->stopped, s->pty.path);
        s->stopped = 0;
    }
    if (tells && !proved && turn == SWX_TURN_UNKNOWN && is_seen_elsewhere(s)) { /* it has just woken up */
        swx_session_check_in(s, now, MS / 5);
        return true;
    }
    if (turn != SWX_TURN_OTHERS) {
        s->worked = swx_kernel_worked(s->child.pid);
        s->last_start = last;
        s->outpaced = 0;
        return false;
    }
    s->outpaced = s->outpaced ? s->outpaced : now;
    if (now - s->outpaced > OUTPACED_LIMIT) {
        swx_session_lose(s); /* it cannot be ended: nobody knows what would reach the shell */
    } else if (proved) {
        swx_child_kill_readers(&s->child, 0, s->pty.path);
        swx_session_check_in(s, now, MS / 5);
    } else { /* the kernel does not tell which one: it is given an empty line, to which the shell would but show its prompt */
        settle_modes(s);
        if (swx_session_type_bytes(s, "\n", 1)) {
            swx_session_check_in(s, now, MS);
        } else {
            swx_session_lose(s);
        }
    }
    return true;
}

/* A shell whose prompts do not show is silent, has its terminal for itself, and has read all that was typed.  alone: and does
 * not wait for another process of its group, see swx_kernel_may_await_input. */
static bool is_still(swx_session *s, int64_t now, bool alone)
{
    return now - s->last_data > UNHEARD && now - s->delivered > UNHEARD && typed_all(s) && swx_pty_input_consumed(&s->pty) &&
           swx_pty_foreground(&s->pty) == s->child.pid &&
           swx_kernel_may_await_input(&s->kernel, s->child.pid, alone && !has_evidence(s));
}

/* A shell in the place of ours (`exec bash`, `exec zsh`) is at a prompt of its own, of which our marks know nothing: a bash is asked, and
 * with another one nothing can be done.  A bash waits in readline there, or reads as ours does; else it is for a `read`.  One that was
 * told what to run may wait so too. */
static bool meets_another_shell(swx_session *s, int64_t now)
{
    if (s->pty.carrier || !s->begun || now - s->last_data <= UNHEARD || !swx_stop_is_replaced(s) || !is_still(s, now, true)) {
        return false;
    }
    swx_shell_kind kind = swx_kernel_shell_of(s->child.pid);
    bool prompt = !swx_pty_is_canonical(&s->pty) || swx_kernel_reads_as_prompt(&s->kernel);
    if (kind == SWX_NO_SHELL || (kind == SWX_BASH && !prompt) || (kind == SWX_OTHER_SHELL && s->attached) ||
        !swx_settle_drained(s, now)) {
        return false;
    }
    if (kind == SWX_BASH) {
        s->readline_seen = true;
        s->kernel.buffer = 0;
        swx_stop_know_shell(s);
        swx_settle_challenge(s, now, true);
    } else {
        s->loss = "Another shell, which is no bash, has taken the place of the session's own (exec)";
        swx_session_lose(s);
    }
    return true;
}

static void settle_running(swx_session *s, int64_t now, bool fresh)
{
    /* Without a mark, readline's wait may be a program's of the same process. */
    where at = look_at_shell(s, fresh ? LOOKS_AT_ONCE : 1);
    if (at == AT_PROMPT && s->readline_seen && !s->found.rank && !swx_stop_runs_shell(s, s->child.pid)) {
        s->readline_seen = false;
        at = NOT_YET;
    }
    if (at == AT_PROMPT && (!s->found.rank || (s->expects_start && !s->begun)) && !waits_for_input(s)) {
        try_again_later(s, now); /* more of the command is on its way: a question would cut it in two */
        return;
    }
    if (at == AT_PROMPT || (at == NO_EVIDENCE && s->found.rank)) {
        if (!swx_settle_drained(s, now)) {
            if (s->state == RUNNING && swx_listen_is_held(s)) {
                try_again_later(s, now);
            } else if (s->state == RUNNING) {
                swx_session_check_in(s, now, MS / 10);
            }
            return;
        }
        if (s->pty.carrier && is_early(s, now)) {
            swx_session_check_in(s, now, MS);
            return;
        }
        if (shows_prompt(s, now)) {
            swx_session_check_in(s, now, CALM / 4);
            return;
        }
        if (s->helper && helper_is_behind(s, now)) {
            swx_session_check_in(s, now, CALM / 4);
            return;
        }
        if (is_outpaced(s, at, now)) {
            return;
        }
        if (s->stopped == s->child.pid && swx_kernel_has_newborn(s->child.pid)) {
            try_again_later(s, now); /* it may be about to take the terminal */
        } else if (s->found.rank && swx_stop_left_newborn(s)) {
            swx_buf_chop(&s->output, (size_t)(s->output.total - s->found.at));
            swx_settle_challenge(s, now, false);
        } else if (s->found.rank) {
            conclude_from_mark(s, now);
        } else {
            s->lost_prompts++;
            swx_settle_challenge(s, now, true);
        }
        return;
    }
    if (fresh && s->found.rank) { /* the shell is on its way to its read */
        s->backoff = MS / 20;
    }
    if (!fresh && !s->begun && at == NOT_YET && is_past_start(s, now) && swx_settle_drained(s, now) && !s->begun) {
        begin_without_mark(s);
    }
    if (!fresh && !s->found.rank && at == NOT_YET && meets_another_shell(s, now)) {
        return;
    }
    try_again_later(s, now);
}

/* Where the kernel does not tell and no mark comes: the shell is asked once it has been still for a while, if the command may
 * have hidden its prompts, or an interrupt has ended whatever it may have read by itself.  Else it is more likely to be reading
 * something, which must not get the question. */
static bool asks_unheard(swx_session *s, int64_t now)
{
    bool unread = s->expects_start && !s->begun; /* the shell waits for more of it, in an open quote of an alias's */
    bool may = !s->pty.carrier && !has_evidence(s) && !s->found.rank && !s->attached && !s->notices && !swx_listen_is_held(s) &&
               (unread || (s->hints & SWX_HINT_HIDES) || s->stopped == s->child.pid);
    int64_t worked = may && is_still(s, now, true) ? swx_kernel_worked(s->child.pid) : 0;
    bool again = worked && worked == s->still;
    s->still = worked;
    if (!again || !swx_settle_drained(s, now)) {
        return false;
    }
    s->still = 0;
    if (is_outpaced(s, NO_EVIDENCE, now)) {
        return true;
    }
    swx_settle_take_held(s);
    s->readline_seen = s->readline_seen || !swx_pty_is_canonical(&s->pty); /* as in look_at_shell */
    s->doubting = !unread; /* what comes meanwhile is the command's, and its mark may still come */
    begin_challenge(s, now, true);
    return true;
}

/* The question was for nobody: it waits to be read as long as the shell does not read, and something else may have taken it. */
static bool was_in_vain(swx_session *s, int64_t now)
{
    if (s->pty.carrier || !s->doubting || s->answered) {
        return false;
    }
    if (!swx_pty_input_consumed(&s->pty)) {
        s->give_up = now + CHALLENGE_LIMIT;
    } else if (s->found.rank && now - s->last_data > UNHEARD) {
        s->doubting = false;
        s->state = RUNNING;
        swx_session_check_in(s, now, 0);
        return true;
    }
    return false;
}

static void settle_challenge(swx_session *s, int64_t now)
{
    if (s->phase == ASK && was_in_vain(s, now)) {
        return;
    }
    if (s->answered) {
        swx_stop_end_newborn(s);
    }
    if (s->phase == ASK) { /* the answer's last mark moves on; without it the line was not understood */
        where at = look_at_shell(s, 1);
        bool waits = at == AT_PROMPT ? is_silent(s, now) && waits_for_input(s)
                                     : at == NO_EVIDENCE && !s->pty.carrier && !s->doubting && is_still(s, now, true);
        if (waits && swx_settle_drained(s, now) && s->phase == ASK) {
            if (s->ask_again) {
                s->ask_again = false;
                type_challenge(s, now);
                return;
            }
            if (s->interrupted_once) {
                swx_session_lose(s);
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
    /* To a carrier the second line is typed behind the first: what is on its way takes any time. */
    bool ahead = s->pty.carrier && s->phase == AWAIT_PROMPT;
    bool arrived = s->found.rank || s->phase != RESTORE || at != AT_PROMPT || waits_for_input(s);
    bool alone = s->phase != AWAIT_PROMPT; /* one that has answered has nothing left to run */
    bool still = at == NO_EVIDENCE && (s->found.rank || ahead || (s->pty.carrier ? is_silent(s, now) : is_still(s, now, alone)));
    bool evident = (at == AT_PROMPT && arrived) || still;
    if (!evident || !swx_settle_drained(s, now)) {
        if (s->state == CHALLENGE) {
            try_again_later(s, now);
        }
        return;
    }
    if (is_outpaced(s, at, now)) {
        return;
    }
    if (s->phase == AWAIT_PROMPT) {
        type_restore(s, now);
    } else if (shows_prompt(s, now)) {
        swx_session_check_in(s, now, CALM / 4);
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
    if (at == NOT_YET || !waits_for_input(s)) {
        swx_session_check_in(s, now, s->backoff);
        s->backoff = earlier(s->backoff * 2, 2 * MS);
        return;
    }
    s->arriving = false;
    s->delivered = now;
    s->backoff = FIRST_CHECK;
    swx_session_check_in(s, now, s->backoff);
    if (s->raw) {
        swx_pty_set_raw(&s->pty, false);
    }
    if (!swx_session_type_end(s)) {
        swx_session_lose(s);
    }
}

static void become_ready(swx_session *s, int64_t now)
{
    swx_session_become_idle(s, now);
    s->start_marks = true;
    swx_stop_know_shell(s);
    s->exposed = s->pty.carrier;
    s->facts.kernel_proof = has_evidence(s);
    swx_buf_clear(&s->output);
    swx_session_begin(s, now);
    if (s->state == IDLE) {
        swx_session_finish_list(s, &s->interrupts, SWX_END_DONE, 0);
    }
}

static void settle_starting(swx_session *s, int64_t now)
{
    if (!s->found.rank) {
        swx_session_check_in(s, now, LONGEST_CHECK);
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
    swx_session_check_in(s, now, MS / 20);
}

/* Who has read the answer to a query before the prompt's mark is no shell at its prompt. */
static void check_reply(swx_session *s, int64_t now)
{
    bool read = s->replied && typed_all(s) && swx_pty_input_consumed(&s->pty) && swx_settle_drained(s, now);
    s->replied = s->replied && (!read || s->found.rank);
}

void swx_settle(swx_session *s, int64_t now, bool fresh)
{
    switch (s->state) {
    case STARTING:
        settle_starting(s, now);
        break;
    case RUNNING:
        if (s->astray) {
            swx_session_lose(s);
            break;
        }
        check_reply(s, now);
        if (s->state != RUNNING) {
            break;
        }
        if (s->arriving) {
            settle_arriving(s, now);
        } else if (fresh ? s->found.rank > 0 : (s->found.rank > 0 || has_evidence(s))) {
            settle_running(s, now, fresh);
        } else if (!fresh) {
            if (s->proving && s->proofs < PROOFS && now - s->proving > PROOF_GRACE) {
                type_empty_line(s, now);
            }
            if (!meets_another_shell(s, now) && !asks_unheard(s, now)) {
                swx_session_check_in(s, now, LONGEST_CHECK);
            }
        }
        break;
    case CHALLENGE:
        settle_challenge(s, now);
        break;
    case IDLE:
        s->check = SWX_NEVER;
        swx_session_begin(s, now);
        break;
    default:
        s->check = SWX_NEVER;
        break;
    }
}
