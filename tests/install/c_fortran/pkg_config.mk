# make -f pkg_config.mk, where PKG_CONFIG_PATH has lib/pkgconfig of the prefix
all: model_c model_fortran
model_c: model.c
	mpicc model.c $$(pkg-config --cflags --libs dtensor-c) -lm -o model_c
model_fortran: model.f90
	mpifort $(FFLAGS) $$(pkg-config --variable=sources dtensor-fortran) model.f90 $$(pkg-config --libs dtensor-fortran) -o model_fortran
