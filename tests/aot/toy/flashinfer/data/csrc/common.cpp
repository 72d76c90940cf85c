#include <toy/both.h>
#include <cstdlib>
int common() { return std::abs(-BOTH); }
