#pragma once
#define FIRST 1
