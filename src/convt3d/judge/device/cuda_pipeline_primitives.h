// As in CUDA, a file of its own.
#pragma once
#include "cuda_pipeline.h"
