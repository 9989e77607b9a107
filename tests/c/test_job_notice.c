#include "swx_job_notice.h"

#include "harness.h"

static const struct {
    const char *before, *notices;
    uint32_t lines;
} cases[] = {
    { "", "", 0 },
    { "out\n", "", 0 },
    { "X", "[1]+  Done                    sleep 1\n", 1 },
    { "X[1]+  Done                    fake", "[1]+  Done                    sleep 1\n", 1 },
    { "a\nb[", "[2]-  Exit 127                x\n", 1 },
    { "X", "[1]+  Done                    sleep 0.1  (wd: /)\n(wd now: /tmp)\n", 1 },
    { "(wd now: /tmp)\n", "[1]+  Done                    sleep 0.1\n", 1 },
    { "two [1]+  Done    c\n", "", 0 }, /* not in its column */
    { "out\n", "[1]+  Done                    sleep 1\n", 1 },
    { "out\n",
      "[1]   Done                    sleep 1\n[2]-  Exit 3                  (exit 3)\n[13]+  Killed                  "
      "x\n",
      3 },
    { "", "[1]+  Done(2)                 sleep 1 | false\n", 1 },
    { "[1]+  Done\n", "", 0 },
    { "", "[1]+  Segmentation fault      (core dumped) ./crash\n", 1 },
    { "", "[1]+  Terminated              sleep 1  (wd: ~)\r\n", 1 },
    { "", "[1]+  User defined signal 1   sleep 9\n", 1 },
    { "", "[1]+  Bad system call         (core dumped) x\n", 1 },
    { "", "[1]+  CPU time limit exceeded (core dumped) x\n", 1 },
    { "", "[1]+  File size limit exceeded(core dumped) x\n", 1 },
    { "", "[1]+  Virtual timer expired   x\n", 1 },
    { "", "[1]+  Real-time signal 3      x\n", 1 },
    { "[1]+  Done                    sleep 1", "", 0 }, /* not a whole line */
    { "[1]+  Stopped                 cat\n", "", 0 },   /* the job is still there */
    { "[1]+  Running                 cat &\n", "", 0 },
    { "[1]+  Donegal                 x\n", "", 0 },
    { "[1]+ Done                     x\n", "", 0 },
    { "[1]*  Done                    x\n", "", 0 },
    { "[]+  Done                     x\n", "", 0 },
    { "[x]+  Done                    x\n", "", 0 },
    { "[1", "", 0 },
    { "[1]\n", "", 0 },
    { "[1]+\n", "", 0 },
    { "[1]+  \n", "", 0 },
    { "[12345678901234567890123\n", "", 0 },
    { "\n", "", 0 },
    { "a\n", "[1]+  Done                    for i in 1 2;\ndo\n    :;\ndone | cat\n", 1 },
    { "", "[1]+  Done                    while a; do\n    b;\ndone  (wd: /)\n(wd now: /tmp)\n", 1 },
    { "", "[1]+  Done                    sh -c 'a\n\nb'\n[2]-  Done                    x\n", 2 },
    { "", "[1]+  Exit 1                  cat <<E > f\nfi\nE\n\n", 1 },
};

/* The text is in a block of its exact size, so that the sanitizer sees a read past it. */
static void test_lines(void)
{
    for (size_t i = 0; i < SWX_COUNT(cases); i++) {
        size_t head = strlen(cases[i].before), tail = strlen(cases[i].notices);
        uint8_t *text = malloc(head + tail + (head + tail == 0));
        CHECK(text);
        memcpy(text, cases[i].before, head);
        memcpy(text + head, cases[i].notices, tail);
        uint32_t lines = swx_job_notice_count(text, head + tail, 3);
        CHECK(lines < 2 || swx_job_notice_count(text, head + tail, lines - 1) == 0);
        size_t got = head + tail - swx_job_notice_remove(text, head + tail);
        if (got != tail || lines != cases[i].lines || memcmp(text, cases[i].before, head) != 0) {
            fprintf(stderr, "case %zu: %zu bytes in %u lines, wanted %zu in %u\n", i, got, (unsigned)lines, tail,
                    (unsigned)cases[i].lines);
            exit(1);
        }
        free(text);
    }
    CHECK(swx_job_notice_count(NULL, 0, 1) == 0 && swx_job_notice_remove(NULL, 0) == 0);
}

static void test_lines_anywhere(void)
{
    char text[] = "[1]+  Done                    a\none\n[2]   Exit 3                  b\ntwo [1]+  Done    c\n[3]-  "
                  "Killed                  d\n[1]+  Done    e";
    CHECK(swx_job_notice_count((uint8_t *)text, sizeof(text) - 1, 3) == 3);
    size_t size = swx_job_notice_remove((uint8_t *)text, sizeof(text) - 1);
    const char *rest = "one\ntwo [1]+  Done    c\n[1]+  Done    e";
    CHECK(size == strlen(rest) && memcmp(text, rest, size) == 0);
}

/* What is no more of the command stays, and so does what only may be. */
static void test_lines_behind(void)
{
    const char *texts[][2] = {
        { "[1]+  Done                    sh -c 'a\nb'\n\nout\n", "\nout\n" },
        { "[1]+  Done                    cat <<E\na\nE\n\n\nout\n", "\nout\n" },
        { "[1]+  Done                    cat <<<E\n\nout\n", "\nout\n" },
        { "[1]+  Done                    for i in 1;\ndo\n    :;\nout\n", "do\n    :;\nout\n" },
    };
    for (size_t i = 0; i < SWX_COUNT(texts); i++) {
        char text[100];
        size_t size = (size_t)snprintf(text, sizeof(text), "%s", texts[i][0]), rest = strlen(texts[i][1]);
        CHECK(swx_job_notice_remove((uint8_t *)text, size) == rest && memcmp(text, texts[i][1], rest) == 0);
    }
}

/* A reader that gets bytes as they come is never given one of a notice, and all of what can be none. */
static void test_begin(void)
{
    const char *lines[] = { "X[1]+  Done                    sleep 1\nY", "X[13]-  Exit 127                a [1] b\nY" };
    for (size_t i = 0; i < SWX_COUNT(lines); i++) {
        for (size_t size = 2; size <= strlen(lines[i]); size++) {
            CHECK(swx_job_notice_begin((const uint8_t *)lines[i], size) == 1);
        }
    }
    const char *others[] = {
        "[user@host]$ ", "In [1]: x",         "[1]x",          "[]", "[1]+  Running                 cat\n",
        "[1]*",          "[ 50%] Building\n", "[1]+  Done x\n"
    };
    for (size_t i = 0; i < SWX_COUNT(others); i++) {
        CHECK(swx_job_notice_begin((const uint8_t *)others[i], strlen(others[i])) == strlen(others[i]));
    }
    CHECK(swx_job_notice_begin((const uint8_t *)"", 0) == 0);
}

static void test_lead(void)
{
    const char *
        notices = "[1]+  Done                    sleep 1\n[2]-  Exit 127                a b  (wd: /)\n(wd now: /tmp)\n",
       *lines[] = { "", "x", "[1]", "X[1]+  Done                    sleep 1\n" };
    for (size_t i = 0; i < SWX_COUNT(lines); i++) {
        char text[200];
        snprintf(text, sizeof(text), "%s%s", notices, lines[i]);
        CHECK(swx_job_notice_lead((const uint8_t *)text, strlen(text)) == strlen(notices));
        CHECK(swx_job_notice_lead((const uint8_t *)lines[i], strlen(lines[i])) == 0);
    }
}

/* Every prefix and every byte changed: no crash, and never more than the text. */
static void test_any_bytes(void)
{
    const char *line = "a\n[1]+  Exit 127                (core dumped) x\n";
    size_t size = strlen(line);
    for (size_t cut = 0; cut <= size; cut++) {
        for (int byte = 0; byte < 256; byte += 1 + (byte > 127)) {
            uint8_t *text = malloc(size - cut + 1);
            CHECK(text);
            memcpy(text, line + cut, size - cut);
            text[(size - cut) / 2] = (uint8_t)byte;
            CHECK(swx_job_notice_count(text, size - cut, 2) <= 2 &&
                  swx_job_notice_begin(text, size - cut) <= size - cut &&
                  swx_job_notice_remove(text, size - cut) <= size - cut);
            free(text);
        }
    }
}

TEST_MAIN(test_lines, test_lines_anywhere, test_lines_behind, test_begin, test_lead, test_any_bytes)
