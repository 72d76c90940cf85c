#pragma once
#define BOTH 3
int common();
