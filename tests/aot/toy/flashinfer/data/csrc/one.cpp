#include <toy/both.h>
#include <toy/first.h>
#include "generated.h"
extern "C" __attribute__((visibility("default"))) int __tvm_ffi_one(void) { return FIRST + BOTH + GENERATED + common(); }
const char* file_of_one() { return __FILE__; }
