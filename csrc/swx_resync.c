/* The question to the shell: how did the last command end?  Asked where marks and the kernel leave a doubt. */
#include "swx_session_private.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "swx_job_notice.h"

enum { CHALLENGE_ATTEMPTS = 3 }; /* to get a mark shown at all */
/* for a command without a START mark to be read elsewhere: longer than a round trip */
static const int64_t ARRIVAL = 1500 * MS;

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

static bool begins_with_mark(const uint8_t *text, size_t size)
{
    static const char head[] = "\033]7733;";
    return size >= sizeof(head) - 1 && memcmp(text, head, sizeof(head) - 1) == 0;
}

/* ---- what our own elements of PROMPT_COMMAND show ---- */

/* Finds our text in the output's last line, after what a command has left there without a newline.  NULL: the line has
 * none, or it is the user's own look at PROMPT_COMMAND. */
static const uint8_t *find_own(const swx_session *s, const uint8_t *line, size_t size)
{
    static const struct {
        const char *head, *end;
        bool group;
    } texts[] = {
        { SWX_REASSERT_GROUP, SWX_GROUP_END, true }, { SWX_GUARD_GROUP, SWX_GROUP_END, true },
        { SWX_REASSERT, SWX_REASSERT_END, false },   { SWX_REASSERT, SWX_REASSERT_TRACED, false },
        { SWX_REASSERT, SWX_REASSERT_BARE, false },  { SWX_REASSERT, SWX_BARE_END, false },
        { SWX_GUARD, SWX_GUARD_END, false },
    };
    if (contains(line, size, "PROMPT_COMMAND") || !contains(line, size, s->marks.nonce)) {
        return NULL;
    }
    for (size_t i = 0; i < SWX_COUNT(texts); i++) {
        const uint8_t *at = find_last(line, size, texts[i].head);
        bool ends = swx_buf_ends_with(&s->output.kept, (const uint8_t *)texts[i].end, strlen(texts[i].end));
        if (at && texts[i].group) {
            return ends ? at : NULL;
        }
        if (at && ends) {
            if (at - line < 2 || at[-1] != ' ' || at[-2] != '+') {
                return line; /* a DEBUG trap's own text before it, or another PS4, goes too */
            }
            for (at--; at > line && at[-1] == '+';) {
                at--;
            }
            return at;
        }
    }
    return NULL;
}

/* Removes from the output's end the traces of our elements of PROMPT_COMMAND, which run after the command.  The shell
 * prints them under `set -v`, under `set -x` with BASH_XTRACEFD on the terminal, and in a DEBUG trap that prints
 * commands. */
void swx_resync_drop_own(swx_session *s)
{
    swx_buf *output = &s->output.kept;
    while ((s->shell.reassert || s->shell.guard) && !swx_buf_dropped(output) && output->size &&
           output->data[output->size - 1] == '\n') {
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

/* ---- the question ---- */

/* What to ask about a terminal that is not ours.  Bash puts its modes back after a job that died of a signal, but takes
 * over those that a job leaves when it exits. */
static swx_modes_question modes_question(const swx_session *s)
{
    if (s->transport->has_terminal || (s->shell.adds_cr && !s->shell.nonce_is_exposed)) {
        return SWX_MODES_SKIP;
    }
    return s->shell.nonce_is_exposed ? SWX_MODES_FIRST : s->run.hints & SWX_SCAN_STTY ? SWX_MODES_KEEP : SWX_MODES_ASK;
}

/* Types one of our lines.  In readline a return ends it, because the user may have bound the newline otherwise. */
static bool type_line(swx_session *s, swx_buf *line)
{
    bool keys = swx_kernel_look(&s->kernel) == SWX_SHELL_READLINE;
    for (size_t i = 0; keys && i < line->size; i++) {
        line->data[i] = line->data[i] == '\n' ? '\r' : line->data[i];
    }
    return swx_session_type_bytes(s, line->data, line->size);
}

/* Where the shell prints its answer: to its input, or by the terminal's path if that may be open for reading alone. */
static const char *place_of_answer(const swx_session *s)
{
    char path[48];
    struct stat descriptor; /* its permissions are those of the descriptor */
    snprintf(path, sizeof(path), "/proc/%d/fd/0", (int)s->child.pid);
    bool only_read = s->transport->has_processes && lstat(path, &descriptor) == 0 && !(descriptor.st_mode & S_IWUSR);
    return only_read || s->shell.input_moved ? SWX_ANSWER_TERMINAL : SWX_ANSWER_INPUT;
}

/* Begins a phase; silence is measured from now on. */
static void begin_phase(swx_session *s, resync_phase phase, int64_t now)
{
    s->resync.phase = phase;
    s->give_up = now + RESYNC_LIMIT;
    s->output.last_data = now;
    swx_session_check_from(s, now, FIRST_CHECK);
}

static void type_question(swx_session *s, int64_t now)
{
    swx_buf line;
    swx_buf_init(&line, PART_LIMIT);
    begin_phase(s, ASK, now);
    s->answer.part = PART_NOISE; /* the prompts' texts stay until there is an answer */
    s->resync.question = modes_question(s);
    swx_completion_apply_modes(s);
    bool typed = (s->resync.owner_saw_end || swx_marks_init(&s->marks, !s->transport->has_processes, NULL) == SWX_OK) &&
                 swx_session_drop_input(s) &&
                 swx_shelltext_question(&line, &s->marks, s->resync.question, place_of_answer(s)) == SWX_OK &&
                 type_line(s, &line);
    s->shell.nonce_is_exposed = s->shell.modes_may_differ = false;
    swx_buf_free(&line);
    if (!typed) {
        swx_session_lose(s);
    }
}

void swx_resync_begin(swx_session *s, int64_t now, resync_reason reason)
{
    if (reason == PROMPT_WITHOUT_MARK) {
        swx_completion_take_held(s);
    }
    swx_resync_drop_own(s); /* now, because it is found by this nonce */
    if (s->run.begun && !swx_completion_holds_start(s)) {
        swx_completion_drop_start(s); /* now, because the answer brings new texts of the prompts */
    }
    s->state = RESYNC;
    s->facts.questions++;
    const candidate *found = &s->run.found;
    bool replied = s->run.replied && found->rank;
    s->resync = (swx_resync){
        .doubted = found->rank,
        .prompt_missing = reason == PROMPT_WITHOUT_MARK || reason == PROMPT_SEEN,
        .owner_saw_end = reason == PROMPT_SEEN,
        .arms_prompt = reason == NO_DOUBT,
        .input_moved = s->shell.input_moved && found->rank,
        .thrown_away = s->run.read_before > 0 && swx_kernel_bytes_read(s->child.pid) == s->run.read_before,
        .unexpanded = found->rank && found->code < 0,
        .interrupted = replied,
        .ask_again = replied,
        .code_before = replied ? found->code : -1,
    };
    if (replied) { /* the shell may have read the answer to a query, and SIGINT makes it forget that */
        s->run.replied = false;
        begin_phase(s, ASK, now);
        swx_pty_interrupt(&s->pty);
    } else {
        type_question(s, now);
    }
}

bool swx_resync_is_needed(const swx_session *s)
{
    /* A START mark proves that the command was read.  Without one the command may still be on its way to a shell at its
     * prompt, and a program that it starts would read the question.  Where no START mark can come (a guard, a readonly
     * PS0, a line typed to a program), time has to do.  No question follows another line of ours. */
    return !s->transport->has_processes && s->state == RUNNING && s->run.begun && !s->run.found.rank &&
           !s->run.sync_newline_at && !s->run.notices && typed_all(s) && !swx_output_is_held(s);
}

bool swx_session_resync(swx_session *s, uint64_t commands, int64_t now)
{
    bool arrived = (s->run.expects_start && !s->run.numbers_may_skip) || now - s->run.delivered > ARRIVAL;
    if (s->facts.commands != commands || !arrived || !swx_resync_is_needed(s)) {
        return false;
    }
    s->run.readline_seen = s->run.readline_seen || (s->run.hints & SWX_SCAN_EXEC); /* `exec bash` */
    swx_resync_begin(s, now, PROMPT_SEEN);
    return true;
}

/* Removes the question from the output's end, where a terminal with echo has shown it. */
static void drop_echo(swx_session *s)
{
    swx_buf *output = &s->output.kept;
    while (output->size && !swx_buf_dropped(output)) { /* more than one of its commands begin so */
        size_t part = output->size < PART_LIMIT ? output->size : PART_LIMIT;
        const uint8_t *text = output->data + output->size - part, *at = find_last(text, part, SWX_QUESTION);
        if (!at || !contains(at, (size_t)(text + part - at), s->marks.nonce)) {
            return;
        }
        swx_buf_chop(output, (size_t)(text + part - at));
    }
}

void swx_resync_end_doubt(swx_session *s)
{
    s->resync.prompt_missing = !s->run.found.rank;
    if (s->run.found.rank) { /* the prompt's mark was only late */
        swx_buf_chop(&s->output.kept, (size_t)(s->output.kept.total - s->run.found.at));
    } else {
        const swx_buf *ps0 = &s->answer.parts[PART_PS0]; /* printed when the shell read the question */
        s->shell.lost_prompts++;
        if (ps0->size && !swx_buf_dropped(ps0) && swx_buf_ends_with(&s->output.kept, ps0->data, ps0->size)) {
            swx_buf_chop(&s->output.kept, ps0->size);
        }
        drop_echo(s);
        static const uint8_t left[] = "\033[?2004l\r\n"; /* what readline writes where it does not show a line */
        if (s->run.readline_seen && swx_buf_ends_with(&s->output.kept, left, sizeof(left) - 1)) {
            swx_buf_chop(&s->output.kept, sizeof(left) - 1);
        }
    }
}

/* ---- the answer ---- */

/* Reads the last part of the answer: a line end, a digit in the first question, and the modes.  Returns whether the
 * modes must be put back. */
static bool take_modes(swx_session *s)
{
    if (!s->answer.parts[PART_MODES].size) { /* not even printf: nothing is known */
        return false;
    }
    const uint8_t *at = s->answer.parts[PART_MODES].data, *end = at + s->answer.parts[PART_MODES].size;
    bool processed = *at == '\r';
    at = memchr(at, '\n', (size_t)(end - at));
    if (s->resync.question == SWX_MODES_FIRST) {
        s->shell.reassert = !at || end - at < 2 || at[1] != '0';
        at = at ? memchr(at + 1, '\n', (size_t)(end - at - 1)) : NULL;
    }
    size_t size = 0;
    for (at = at ? at + 1 : end; at + size < end && at[size] != '\r' && at[size] != '\n';) {
        size++;
    }
    bool known = swx_shelltext_is_modes(at, size);
    s->run.processed = processed;
    if (s->resync.question == SWX_MODES_FIRST) {
        s->shell.adds_cr = processed && !known;
    }
    if (s->resync.question == SWX_MODES_ASK || !known) {
        return known && s->shell.modes.size &&
               (size != s->shell.modes.size || memcmp(at, s->shell.modes.data, size) != 0);
    }
    swx_buf_clear(&s->shell.modes);
    swx_buf_append(&s->shell.modes, at, size); /* out of memory: they stay unknown, and are not put back */
    return false;
}

/* The size of what is before `$_`: the declaration of PIPESTATUS, SHELLOPTS unless pipefail is on, and a blank. */
static size_t size_of_codes(const swx_buf *state)
{
    const uint8_t *start = state->data, *end = start ? start + state->size : start;
    const uint8_t *codes = start < end && *start == 'd' ? memchr(start, ')', state->size) : start;
    const uint8_t *blank = codes ? memchr(codes, ' ', (size_t)(end - codes)) : NULL;
    return blank ? (size_t)(blank - start) + 1 : state->size;
}

/* Whether a prompt is our own: a mark, perhaps of an earlier nonce, and nothing else. */
static bool is_own_prompt(const swx_buf *prompt)
{
    const uint8_t *end = prompt->size ? memchr(prompt->data, '\a', prompt->size) : NULL;
    return end && end + 1 == prompt->data + prompt->size && begins_with_mark(prompt->data, prompt->size);
}

static void type_restore(swx_session *s, int64_t now)
{
    swx_buf line;
    swx_buf_init(&line, PART_LIMIT);
    begin_phase(s, RESTORE, now);
    s->resync.attempt++;
    bool first = s->resync.question == SWX_MODES_FIRST, changed = s->resync.question != SWX_MODES_SKIP && take_modes(s);
    s->resync.question = SWX_MODES_SKIP;
    s->run.found = (candidate){ 0 };
    /* First restore the prompts alone.  If they do not show, the user's PROMPT_COMMAND may set them each time; if they
     * still do not, they may be readonly.  If stderr is elsewhere, prompts go there, and the kernel tells the end
     * better than PROMPT_COMMAND. */
    bool silent = s->answer.report.no_stderr, told = has_evidence(s), far = !told && s->resync.prompt_missing;
    /* where only silence tells, each try takes long, so the first two are one */
    bool last = s->resync.attempt > (far ? 1 : 2);
    /* by a later element, or a PS1 that cannot be set; ours is still there if the guard only comes now */
    const swx_buf *prompt = &s->answer.parts[PART_PS1];
    bool set_behind_guard = s->shell.guard && prompt->size && !is_own_prompt(prompt);
    s->shell.guard = s->shell.guard || (!told && (silent || last));
    s->shell.prompt_follows_guard = !told && !silent &&
                                    (s->shell.prompt_follows_guard || last || set_behind_guard ||
                                     (s->shell.guard && s->answer.report.fixed_prompt));
    s->shell.marks_impossible = s->shell.marks_impossible || (told && (silent || last));
    if (s->shell.marks_impossible) {
        s->shell.reassert = s->shell.reassert && !told;
    } else if (s->resync.attempt > 1 || (s->resync.prompt_missing && s->shell.lost_prompts > 1) || far) {
        s->shell.reassert = true;
    }
    const swx_buf *state = &s->answer.parts[PART_STATE];
    size_t codes = size_of_codes(state);
    swx_restore restore = {
        .code = s->answer.report.code,
        .pipestatus = state->data,
        .pipestatus_size = codes,
        .last = state->size ? state->data + codes : NULL,
        .last_size = state->size - codes,
        .prompt_variables = s->resync.unexpanded,
        .readline =
            s->run.readline_seen || !s->transport->has_terminal, /* else it cannot be seen, and this costs nothing */
        .silent = silent || s->shell.guard,
        .guard = s->shell.guard,
        .reassert = s->shell.reassert && !s->shell.guard,
        .unreassert =
            silent || s->shell.guard ||
            (s->shell.marks_impossible && told && (s->shell.brace_may_be_alias || s->answer.report.fixed_prompt)),
        .brace_may_be_alias = s->shell.brace_may_be_alias,
        .disarm = first && !s->shell.reassert,
        .keep_modes = s->shell.keeps_modes && s->resync.arms_prompt,
        .unkeep_modes = s->shell.keeps_modes && !s->resync.arms_prompt,
        .modes = s->shell.modes.data,
        .modes_size = changed ? s->shell.modes.size : 0,
    };
    s->shell.keeps_modes = restore.keep_modes;
    /* the old nonce's prompt may still come, and must not count */
    bool fresh = !s->resync.owner_saw_end || swx_marks_init(&s->marks, !s->transport->has_processes, NULL) == SWX_OK;
    s->resync.owner_saw_end = false;
    bool typed = fresh && swx_shelltext_restore(&line, &s->marks, &restore) == SWX_OK && type_line(s, &line);
    swx_buf_free(&line);
    if (!typed) {
        swx_session_lose(s);
    }
}

/* ---- the end ---- */

static bool is_digit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

/* How many bytes at the output's end are the user's prompt, whose present text is given.  Its numbers (of the command,
 * of the history, a time) may have been others.  A number at its beginning has as many digits as now, because digits of
 * the output may stand before it. */
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

/* Removes the user's own prompt from the output's end: all of its text, or if that holds a mark of ours, the part
 * before the mark. */
static void drop_prompt(swx_session *s)
{
    const swx_buf *prompt = &s->answer.parts[PART_PS1];
    size_t size = prompt->size;
    for (size_t i = 0; !s->resync.prompt_missing && i < size; i++) {
        if (begins_with_mark(prompt->data + i, size - i)) {
            size = i;
        }
    }
    if (!swx_buf_dropped(prompt) && !s->answer.report.no_stderr) {
        swx_buf_chop(&s->output.kept, find_prompt(&s->output.kept, prompt->data, size));
    }
}

/* How many commands the shell has read since ours was typed: ours, but neither the question nor the lines that restored
 * the prompts.  -1: unknown. */
static int64_t commands_read(const swx_session *s)
{
    if (s->run.numbers_may_skip || !s->run.found.rank || !s->run.found.number) {
        return -1;
    }
    return (int64_t)(s->run.found.number - s->run.base) - 1 - s->resync.attempt;
}

/* Ends the command after the answer came and prompts and state were restored. */
static void conclude_resync(swx_session *s, int64_t now)
{
    const char *unread = NULL;
    int64_t count = commands_read(s);
    /* Another process typed a command too, or the shell has read some from a file, whose exit code this may be. */
    if (count > 1 && (s->run.number_too_high || s->resync.input_moved) && s->resync.doubted == 2) {
        swx_session_lose(s);
        return;
    }
    bool missed = count <= 0 && s->resync.doubted < 2 && !s->run.begun;
    if (s->current && s->current->runs && (missed || s->resync.thrown_away)) {
        unread = "the shell did not run what was typed: it waited for more of it, or something else read the terminal";
    } else if (s->resync.interrupted && s->resync.code_before < 0 && !s->interrupt.first) {
        unread = "its exit code is not known: the shell did not tell it before it was sent a SIGINT";
    }
    drop_prompt(s);
    s->shell.number = s->run.found.number ? s->run.found.number : s->shell.number;
    /* A prompt that is right but for PS0 says that PS0 cannot be kept. */
    s->shell.start_marks =
        !s->shell.guard && !s->shell.marks_impossible && s->run.found.ps0_kept && s->shell.start_misses < 2;
    s->run.readline_seen = false;
    uint32_t notices =
        s->run.found.rank && swx_completion_asks_about_notices(s)
            ? swx_job_notice_count(s->output.kept.data, s->output.kept.size, s->shell.jobs + s->shell.owed)
            : 0;
    if (notices && s->shell.jobs + s->shell.owed >= s->run.found.jobs + notices) {
        swx_completion_remove_notices(s);
    }
    for (unsigned i = 0; i < LOOKS_AT_ONCE && !has_evidence(s); i++) { /* another bash in the same process */
        if (swx_kernel_learn(&s->kernel) != SWX_MORE) {
            break;
        }
    }
    swx_completion_conclude(s, s->answer.report.code, s->run.found.rank ? s->run.found.jobs : s->shell.jobs, unread,
                            now);
}

/* Whether the question was needless: the shell was at no prompt, a program of the command has read the question, and
 * the command's mark came after all.  An unread question waits in the terminal as long as nothing reads. */
static bool was_in_vain(swx_session *s, int64_t now)
{
    if (!s->transport->has_terminal || !s->resync.owner_saw_end || s->resync.answered) {
        return false;
    }
    if (!swx_pty_input_consumed(&s->pty)) {
        s->give_up = now + RESYNC_LIMIT;
    } else if (s->run.found.rank && now - s->output.last_data > UNHEARD) {
        s->resync.owner_saw_end = false;
        s->state = RUNNING;
        swx_session_check_in(s, now, 0);
        return true;
    }
    return false;
}

/* The answer's last mark moves on to the next phase.  A shell that waits at its prompt without it has not understood
 * the line, or has read it as a part of something else. */
static void check_question(swx_session *s, int64_t now)
{
    if (was_in_vain(s, now)) {
        return;
    }
    if (s->resync.answered) { /* the shell stops before the answer's last mark */
        swx_interrupt_end_newborn(s, now);
    }
    where at = swx_evidence_look(s, 1);
    bool waits = at == AT_PROMPT ? swx_evidence_is_silent(s, now) && swx_evidence_waits_for_input(s)
                                 : at == NO_EVIDENCE && s->transport->has_processes && !s->resync.owner_saw_end &&
                                       swx_evidence_is_still(s, now, true);
    if (waits && swx_evidence_drained(s, now) && s->resync.phase == ASK) {
        if (s->resync.ask_again) {
            s->resync.ask_again = false;
            type_question(s, now);
            return;
        }
        if (s->resync.interrupted) {
            swx_session_lose(s);
            return;
        }
        s->resync.interrupted = s->resync.ask_again = true; /* the shell may wait for the rest of a command */
        swx_pty_interrupt(&s->pty);
        s->output.last_data = now;
    }
    if (s->state == RESYNC) {
        swx_completion_look_again(s, now);
    }
}

/* Whether the shell is at its prompt behind the answer, or behind the line that restored the prompts. */
static bool is_at_prompt(swx_session *s, where at, int64_t now)
{
    /* Elsewhere the second line is typed right after the first, because the way there may take any time. */
    bool ahead = !s->transport->has_processes && s->resync.phase == AWAIT_PROMPT;
    bool arrived =
        s->run.found.rank || s->resync.phase != RESTORE || at != AT_PROMPT || swx_evidence_waits_for_input(s);
    bool alone = s->resync.phase != AWAIT_PROMPT; /* a shell that has answered has nothing left to run */
    bool still =
        at == NO_EVIDENCE &&
        (s->run.found.rank || ahead ||
         (s->transport->has_processes ? swx_evidence_is_still(s, now, alone) : swx_evidence_is_silent(s, now)));
    return (at == AT_PROMPT && arrived) || still;
}

void swx_resync_check(swx_session *s, int64_t now)
{
    if (s->resync.phase == ASK) {
        check_question(s, now);
        return;
    }
    where at = swx_evidence_look(s, LOOKS_AT_ONCE);
    if (!is_at_prompt(s, at, now) || !swx_evidence_drained(s, now)) {
        if (s->state == RESYNC) {
            swx_completion_look_again(s, now);
        }
        return;
    }
    if (swx_evidence_is_reader_ahead(s, at, now)) {
        return;
    }
    if (s->resync.phase == AWAIT_PROMPT) {
        type_restore(s, now);
    } else if (swx_completion_shows_prompt(s, now)) {
        swx_session_check_in(s, now, CALM / 4);
    } else if (s->run.found.rank || s->shell.marks_impossible || s->resync.attempt >= CHALLENGE_ATTEMPTS) {
        s->shell.marks_impossible = !s->run.found.rank;
        conclude_resync(s, now);
    } else {
        type_restore(s, now); /* the prompt does not show: mark the end another way */
    }
}
