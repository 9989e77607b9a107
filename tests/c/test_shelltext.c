/* What the session types is tried on a real bash that reads it from its stdin. */
#include "swx_shelltext.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "alloc.h"
#include "swx_child.h"

static swx_marks new_marks(void)
{
    swx_marks marks = { 0 };
    CHECK(swx_marks_init(&marks, false, NULL) == SWX_OK);
    return marks;
}

static char *text_of(const swx_buf *buf)
{
    char *text = malloc(buf->size + 1);
    CHECK(text);
    swx_buf_copy(buf, "", (uint8_t *)text);
    text[buf->size] = 0;
    return text;
}

/* Runs a script in `bash -i`, with a file as its stdin (fd 0, where the answers go, appended).  Returns all that the
 * file then holds behind the script. */
static char *run_bash(const char *script)
{
    char path[] = "/tmp/swx-shelltext-XXXXXX";
    int input = mkostemp(path, O_CLOEXEC | O_APPEND), null = open("/dev/null", O_RDWR | O_CLOEXEC);
    CHECK(input >= 0 && null >= 0);
    CHECK(unlink(path) == 0);
    size_t size = strlen(script);
    CHECK(write(input, script, size) == (ssize_t)size && lseek(input, 0, SEEK_SET) == 0);
    char *argv[] = { "bash", "--norc", "--noprofile", NULL };
    swx_spawn spawn = { .file = "/bin/bash", .argv = argv, .input = input, .output = null, .error = null };
    swx_child child;
    CHECK(swx_child_start(&child, &spawn, NULL) == SWX_OK);
    while (!swx_child_ended(&child)) {
        usleep(1000);
    }
    swx_child_close(&child);
    struct stat now;
    CHECK(fstat(input, &now) == 0 && (size_t)now.st_size >= size);
    size_t rest = (size_t)now.st_size - size;
    char *answer = malloc(rest + 1);
    CHECK(answer && pread(input, answer, rest, (off_t)size) == (ssize_t)rest);
    answer[rest] = 0;
    close(input);
    close(null);
    return answer;
}

static char *question_text(const swx_marks *marks)
{
    swx_buf line;
    swx_buf_init(&line, 1 << 16);
    CHECK(swx_shelltext_question(&line, marks, SWX_MODES_SKIP, SWX_ANSWER_INPUT) == SWX_OK && line.size <= 1024);
    char *text = text_of(&line);
    swx_buf_free(&line);
    return text;
}

#define MARK "\033]7733;%s;"

/* What the question answers after `before`, then exit so that the shell does not read the answer as commands. */
static void expect_answer(const char *before, int code, const char *pipestatus, const char *last, const char *prompt,
                          const char *start)
{
    swx_marks marks = new_marks();
    char script[4096], wanted[2048], *question = question_text(&marks), *n = marks.nonce;
    question[strlen(question) - 1] = 0; /* the file is its own output: nothing may be read behind the answer */
    snprintf(script, sizeof(script), "PS2=c; set -o pipefail; %s\n%s; exit\n", before, question);
    snprintf(wanted, sizeof(wanted),
             MARK "3;%d\007declare -a PIPESTATUS=(%s) %s" MARK "4\007%s" MARK "4\007%s" MARK "4\007c" MARK "4\007" MARK
                  "5;0\007",
             n, code, pipestatus, last, n, prompt, n, start, n, n, n);
    char *answer = run_bash(script);
    if (strcmp(answer, wanted) != 0) {
        fprintf(stderr, "after <%s>: <%s>, wanted <%s>\n", before, answer, wanted);
        exit(1);
    }
    free(answer);
    free(question);
}

static void test_question(void)
{
    expect_answer("PS1=; (exit 3)", 3, "[0]=\"3\"", "''", "", "");
    expect_answer("PS1=; PS0='start $((1+2))'; (exit 3)", 3, "[0]=\"3\"", "''", "", "start 3");
    expect_answer("PS1='> '; true a 'b c'", 0, "[0]=\"0\"", "b\\ c", "> ", "");
    expect_answer("PS1='$((1+1))'; true; false | true | (exit 7) | false", 1, "[0]=\"1\" [1]=\"0\" [2]=\"7\" [3]=\"1\"",
                  "true", "2", "");
    expect_answer("PS1=x; true \"$(printf 'a\\nb')\"", 0, "[0]=\"0\"", "$'a\\nb'", "x", "");
    expect_answer("PS1=x; IFS=,; true y; true | false | true", 1, "[0]=\"0\" [1]=\"1\" [2]=\"0\"", "y", "x", "");
    expect_answer("PS1=x; IFS=$'\\n\\t'; true y; true | false", 1, "[0]=\"0\" [1]=\"1\"", "y", "x", "");
    expect_answer("PS1=x; IFS=; true y; true | false", 1, "[0]=\"0\" [1]=\"1\"", "y", "x", "");
    expect_answer("PS1=x; true y; (exit 9) |:|:|:|:|:|:|:|:|:| (exit 8)", 8,
                  "[0]=\"9\" [1]=\"0\" [2]=\"0\" [3]=\"0\" [4]=\"0\" [5]=\"0\" [6]=\"0\" [7]=\"0\" [8]=\"0\" [9]=\"0\" "
                  "[10]=\"8\"",
                  "y", "x", "");
    expect_answer("set -u; unset PS1; true y", 0, "[0]=\"0\"", "y", "", "");
    expect_answer("set -e; PS1=x; true y; true | true", 0, "[0]=\"0\" [1]=\"0\"", "y", "x", "");
    expect_answer("set -f; set -C; PS1='*'; true '*'", 0, "[0]=\"0\"", "\\*", "*", "");
    expect_answer("set -o posix; PS1=x; true y", 0, "[0]=\"0\"", "y", "x", "");
    expect_answer("printf() { echo shadowed; }; alias printf=false; PS1=x; true y", 0, "[0]=\"0\"", "y", "x", "");
}

static char *restore_text(const swx_marks *marks, const swx_restore *restore)
{
    swx_buf line;
    swx_buf_init(&line, 1 << 16);
    CHECK(swx_shelltext_restore(&line, marks, restore) == SWX_OK);
    CHECK(line.data[line.size - 1] == '\n' && !memchr(line.data, '\t', line.size));
    for (size_t at = 0, end; at < line.size; at = end + 1) {
        for (end = at; line.data[end] != '\n'; end++) {
        }
        CHECK(end - at < 4095 && (end == line.size - 1 || line.data[end - 1] == '\\'));
    }
    char *text = text_of(&line);
    swx_buf_free(&line);
    return text;
}

/* The state that the shell has after a restore, as `$? - ${PIPESTATUS[*]} - $_`. */
static void expect_state(const char *before, const swx_restore *restore, const char *wanted)
{
    swx_marks marks = new_marks();
    char *text = restore_text(&marks, restore);
    size_t room = strlen(before) + strlen(text) + 256;
    char *script = malloc(room);
    CHECK(script);
    snprintf(script, room, "%s\n%s%s", before, text,
             "{ builtin printf '%s - %s - %s' \"$?\" \"${PIPESTATUS[*]}\" \"$_\" >&0; exit; }\n");
    char *answer = run_bash(script);
    if (strcmp(answer, wanted) != 0) {
        fprintf(stderr, "<%s>: <%s>, wanted <%s>\n", text, answer, wanted);
        exit(1);
    }
    free(answer);
    free(script);
    free(text);
}

static swx_restore restore_of(int code, const char *codes, const char *last)
{
    return (swx_restore){ .code = code,
                          .pipestatus = (const uint8_t *)codes,
                          .pipestatus_size = strlen(codes),
                          .last = (const uint8_t *)last,
                          .last_size = strlen(last) };
}

static void test_restore(void)
{
    static const struct {
        const char *before;
        int code;
        const char *codes, *wanted;
    } rows[] = {
        { ":", 0, "[0]=\"0\"", "0 - 0 - a\tb c" },
        { ":", 5, "[0]=\"0\" [1]=\"1\" [2]=\"5\"", "5 - 0 1 5 - a\tb c" },
        { "set -e; trap 'echo ERR >&0' ERR", 5, "[0]=\"5\"", "5 - 5 - a\tb c" },
        { "set -eo pipefail; trap 'echo ERR >&0' ERR", 1, "[0]=\"1\" [1]=\"0\") ", "1 - 1 0 - a\tb c" },
        { "set -u", 255, "", "255 - 255 - a\tb c" },
        { ":", 8, "[0]=\"9\" [1]=\"0\" [2]=\"999\"", "8 - 8 - a\tb c" },
        { "readonly PS1 PS0 PS2", 4, "[0]=\"0\" [1]=\"4\"", "4 - 0 4 - a\tb c" },
    };
    for (size_t i = 0; i < SWX_COUNT(rows); i++) {
        const swx_restore restore = restore_of(rows[i].code, rows[i].codes, "$'a\\tb c'");
        expect_state(rows[i].before, &restore, rows[i].wanted);
    }
    swx_restore restore = restore_of(3, "[0]=\"1\" [1]=\"2\"", "$'a\\tb c'");
    restore.guard = restore.reassert = restore.prompt_variables = restore.readline = true;
    expect_state(":", &restore, "3 - 3 - a\tb c");
    const char *const foreign[] = { "x; false", "x\nfalse", "$'x'; false", "$'x", "x y",
                                    "x\\",      "$(false)", "x`false`",    "'x" };
    for (size_t i = 0; i < SWX_COUNT(foreign); i++) { /* what no %q writes was written by somebody else */
        restore = restore_of(0, "[0]=\"0\"", foreign[i]);
        expect_state("true kept", &restore, "0 - 0 - PS2=");
    }
}

static void test_restore_of_a_long_word(void)
{
    static char many[SWX_LAST_MAX + 2], wanted[SWX_LAST_MAX + 20];
    memset(many, 'x', SWX_LAST_MAX + 1);
    swx_restore restore = restore_of(0, "[0]=\"0\"", many);
    expect_state("true kept", &restore, "0 - 0 - PS2=");
    many[SWX_LAST_MAX] = 0;
    snprintf(wanted, sizeof(wanted), "7 - 0 7 - %s", many);
    restore = restore_of(7, "[0]=\"0\" [1]=\"7\"", many);
    restore.guard = restore.reassert = true;
    expect_state("true kept", &restore, wanted);
    for (int shift = 0; shift < 8; shift++) { /* no character is cut, wherever a line ends */
        int length = sprintf(many, "$'%.*s", shift, "xxxxxxx"),
            shown = sprintf(wanted, "3 - 3 - %.*s", shift, "xxxxxxx");
        for (int i = 0; i < 2000; i++) {
            length += sprintf(many + length, "\\0017\\'");
            shown += sprintf(wanted + shown, "\0017'");
        }
        strcpy(many + length, "'");
        restore = restore_of(3, "[0]=\"3\"", many);
        expect_state("true kept", &restore, wanted);
    }
}

/* The prompts are in force and are not handed to children. */
static void test_startup(void)
{
    swx_marks marks = new_marks();
    swx_buf line;
    swx_buf_init(&line, 1 << 16);
    const swx_startup startup = { .script = (const uint8_t *)"PS1=x PS0=y", .size = 11, .reassert = true };
    CHECK(swx_shelltext_startup(&line, &marks, &startup) == SWX_OK);
    char *text = text_of(&line), script[4096], wanted[1024];
    snprintf(script, sizeof(script),
             "export PS0=a PS1=b PS2=c\n%s\n{ printf '%%s|%%s|%%s|' \"$PS0\" \"$PS1\" \"$PS2\"; env | grep -c ^PS; } "
             ">&0; exit\n",
             text);
    snprintf(wanted, sizeof(wanted), "%s|%s||0\n", marks.ps0, marks.ps1);
    char *answer = run_bash(script);
    CHECK(strcmp(answer, wanted) == 0);
    free(answer);
    free(text);
    swx_buf_free(&line);
}

static void test_no_memory(void)
{
#ifdef SWX_ALLOC_TEST
    swx_marks marks = new_marks();
    swx_restore restore = restore_of(1, "[0]=\"0\" [1]=\"1\"", "x");
    restore.guard = restore.reassert = restore.readline = restore.prompt_variables = restore.disarm = true;
    restore.modes = (const uint8_t *)"500:5";
    restore.modes_size = 5;
    const swx_startup startup = { .script = (const uint8_t *)":", .size = 1, .elsewhere = true, .reassert = true };
    for (int which = 0; which < 3; which++) {
        swx_status status = SWX_ENOMEM;
        for (unsigned long i = 1; status != SWX_OK; i++) {
            swx_buf line;
            swx_buf_init(&line, 1 << 16);
            long live = swx_alloc_live();
            swx_alloc_fail_at(i, 0);
            status = which == 0   ? swx_shelltext_startup(&line, &marks, &startup)
                     : which == 1 ? swx_shelltext_question(&line, &marks, SWX_MODES_FIRST, SWX_ANSWER_INPUT)
                                  : swx_shelltext_restore(&line, &marks, &restore);
            CHECK(status == SWX_OK ? swx_alloc_count() < i : status == SWX_ENOMEM);
            swx_alloc_fail_at(0, 0);
            swx_buf_free(&line);
            CHECK(swx_alloc_live() == live);
        }
    }
#endif
}

/* Of a terminal elsewhere: what may be typed back, and that the questions are single lines that it can take. */
static void test_modes(void)
{
    static const char *const good[] = { "500:5:bf:8a3b:3:1c:7f", "gfmt1:cflag=4b00:iflag=2b02" };
    static const char *const bad[] = { "", "500", "500:5;reboot", "500:5 echo", "500:5\n", "$(x):", "5:'" };
    char large[500];
    for (size_t i = 0; i < SWX_COUNT(good); i++) {
        CHECK(swx_shelltext_is_modes((const uint8_t *)good[i], strlen(good[i])));
    }
    for (size_t i = 0; i < SWX_COUNT(bad); i++) {
        CHECK(!swx_shelltext_is_modes((const uint8_t *)bad[i], strlen(bad[i])));
    }
    CHECK(!swx_shelltext_is_modes(memset(large, ':', sizeof(large)), sizeof(large)));
    swx_marks marks = new_marks();
    for (swx_modes_question question = SWX_MODES_SKIP; question <= SWX_MODES_FIRST; question++) {
        swx_buf line;
        swx_buf_init(&line, 1 << 16);
        CHECK(swx_shelltext_question(&line, &marks, question, SWX_ANSWER_INPUT) == SWX_OK && line.size <= 1024);
        CHECK(memchr(line.data, '\n', line.size) == line.data + line.size - 1 && !memchr(line.data, '\t', line.size));
        swx_buf_free(&line);
    }
}

TEST_MAIN(test_question, test_restore, test_restore_of_a_long_word, test_startup, test_modes, test_no_memory)
