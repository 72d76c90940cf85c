/* The shell of a stand-in for a registry's base: it runs nothing, and appends its command and $PACKAGES to /ran. */
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  FILE *file = fopen("/ran", "a");
  char const *packages = getenv("PACKAGES");
  if (!file) return 1;
  fprintf(file, "%s\nPACKAGES= %s \n", argc > 2 ? argv[2] : "nothing", packages ? packages : "");
  return fclose(file) != 0;
}
