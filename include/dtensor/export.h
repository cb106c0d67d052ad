// Symbol visibility: everything is hidden unless it is part of the public contract.
#pragma once

// Marks what the shared library exports.
#define DTENSOR_API __attribute__((visibility("default")))
