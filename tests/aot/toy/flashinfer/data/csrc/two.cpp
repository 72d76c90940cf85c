#include <toy/both.h>
extern "C" __attribute__((visibility("default"))) int __tvm_ffi_two(void) { return BOTH + common(); }
extern "C" __attribute__((visibility("default"))) int not_for_tvm_ffi(void) { return 2; }
