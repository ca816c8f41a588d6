"""What can be known of the GPU kernels without a GPU: machine code, its facts and what follows from data sheets."""
