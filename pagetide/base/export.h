#pragma once

// Marks what libpagetide.so exports; everything else is hidden.
#define PAGETIDE_API __attribute__((visibility("default")))
