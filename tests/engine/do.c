// The one program of the image that engine tests run: it says what it was given, waits for a signal, or fails.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static void term(int number) {
    (void)number;
    if (write(1, "ended by SIGTERM\n", 17) == 17) _exit(0);
    _exit(1);
}

int main(int count, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *what = count > 1 ? words[1] : "";
    for (int at = 1; at < count; at++) {
        printf("word %s\n", words[at]);
        if (!strcmp(words[at], "--deaf")) what = "deaf";  // as a flag behind other words
        if (!strcmp(words[at], "--fail")) return 7;
    }
    for (char **one = environ; *one; one++) printf("env %s\n", *one);
    printf("user %d:%d\n", (int)getuid(), (int)getgid());
    fprintf(stderr, "on standard error\n");
    if (!strcmp(what, "fail")) return atoi(words[2]);
    if (!strcmp(what, "once")) return 0;
    signal(SIGTERM, !strcmp(what, "deaf") ? SIG_IGN : term);
    printf("waiting\n");
    for (;;) pause();
}
