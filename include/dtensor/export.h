// Symbol visibility: only symbols marked DTENSOR_API are exported.
#pragma once

// Marks an exported symbol.
#define DTENSOR_API __attribute__((visibility("default")))
