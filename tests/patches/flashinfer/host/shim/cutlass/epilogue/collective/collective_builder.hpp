#pragma once
#include "cutlass/epilogue/dispatch_policy.hpp"
